// Package localpg runs a private Postgres server for one overlayd: nothing to prepare, nothing left behind.
//
// A server lives in one folder, Options.Data:
//
//	lock           held (flock) by the process the server belongs to
//	localpg.json   password, first port and, where it is not here, the folder of the cluster; mode 0600
//	postgres.log   what the server writes, earlier part in postgres.log.1
//	cluster/       the Postgres data directory, owned by the user the server runs as
//	binaries/      downloaded server programs, only where the machine has none
//
// # States
//
//	absent --initdb in cluster.new--> made --rename--> stopped --launch--> running --Stop--> stopped
//	   ^                               |                  ^                   |
//	   '---- removed by next Start ----'                  '--- take-over <----' overlayd killed: on Linux the kernel
//	                                                                            interrupts the server, elsewhere it stays
//
// Server programs are looked for in PATH, where pg_config says, and in the usual places of Debian, Fedora and Homebrew;
// programs of the major version that made an existing cluster come first. If there are none they are downloaded.
//
// Postgres refuses to run as root. A root overlayd therefore runs initdb and the server as the owner of the cluster: the
// user postgres, else nobody, else the first other user of the machine. When that user cannot get through the parents of
// Data, it is given the one capability to search and read folders (CAP_DAC_READ_SEARCH); when overlayd itself lacks that,
// the cluster is made in /var/lib/overlayd and localpg.json points there.
//
// # Invariants
//
//	P1   Stop, then Start on the same Data: the same database, password and, where it is still free, port.
//	P2   One process at a time has a Data; a second Start gets *InUseError and touches nothing.
//	P3   After kill -9 of the owner no server process outlives the next Start, and everything committed is kept. On Linux
//	     the server also ends by itself.
//	P4   Take-over signals only a process that is a Postgres server in this very data directory, whatever number
//	     postmaster.pid holds.
//	P5   The server listens on 127.0.0.1 only, has no Unix socket, and asks every connection for the generated password.
//	P6   A failed or cancelled Start and a returned Stop leave no process.
//	P7   A cluster is either complete or absent: it gets its name by a rename after initdb has synced it.
//	P8   fsync and synchronous_commit are on unless Options.Fast, which only tests use.
//	P9   The parents of Data may be closed to everyone but root.
//	P10  A cluster of another major version is refused with a sentence that names both versions, and is not touched.
//
// # Ownership
//
// Start launches one goroutine per child process. It is locked to its operating system thread until the child has ended,
// because the kernel ties the parent death signal to the thread that forked. It ends with the child; Stop waits for it.
//
// # Failure
//
// When a start fails the error quotes the end of the server's own log. A server that ends by itself closes Server.Done,
// and Server.Err tells why; nothing restarts it. A download runs in a library that knows no context: a cancelled Start
// returns at once, and the download's goroutine ends when its transfer does, without becoming visible.
//
// # Non-goals
//
// Major version upgrades, replicas, other listen addresses, tuning, Windows, and protecting the database from other
// processes of the same user, who may read the password.
package localpg
