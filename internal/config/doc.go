// Package config is the one tree of settings of the program: what they are
// called, what they mean, where they come from and whether they fit together.
//
// # Layers
//
// Later layers win, key by key; a list is replaced whole, never merged:
//
//	built-in defaults -> the command's own defaults (dev) -> YAML file -> OVERLAYD_* -> flags
//
// The variable of a key is OVERLAYD_ and the key in capitals with dots turned
// into underscores: baseURL is OVERLAYD_BASEURL, database.url is
// OVERLAYD_DATABASE_URL, identity.keyFile is OVERLAYD_IDENTITY_KEYFILE. Lists of
// text are written with commas (OVERLAYD_CORS_ORIGINS); services and feeds are
// only read from the file. An empty variable counts as absent.
//
// # Invariants
//
//	G1. Nothing is guessed: a key or an OVERLAYD_* variable nobody knows, a
//	    value of another type, a fraction where an integer belongs and a key
//	    without a value are errors that name the key. (Variables an
//	    orchestrator injects for a service called overlayd are not ours:
//	    OVERLAYD_SERVICE_*, OVERLAYD_PORT, OVERLAYD_PORT_*; nor are
//	    OVERLAYD_TEST_*.)
//	G2. All faults are reported together, one sentence each, saying what to do.
//	G3. What is printed is what is in force, each value with its origin, and no
//	    secret is in it: passwords are masked, tokens and keys live in files of
//	    their own. The one key that may come as a variable is masked too, and
//	    refused in the file of settings.
//	G4. The package reads no environment: the caller passes it in.
//
// # Failure and non-goals
//
// Load and Validate return joined errors and leave nothing behind. Values are
// not watched: a change needs a restart. Whether files, databases and rules
// really exist is found out by whoever opens them.
package config
