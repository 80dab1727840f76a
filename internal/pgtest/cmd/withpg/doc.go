// Command withpg runs a command with a Postgres server for tests.
//
//	go run ./internal/pgtest/cmd/withpg [-durable] -- go test ./...
//
// It starts one private server, whose commits are flushed with -durable and otherwise are not, sets OVERLAYD_TEST_DATABASE_URL,
// runs the command in a process group of its own, passes SIGINT, SIGTERM, SIGHUP and SIGQUIT on to that group, and when the
// command has ended stops the server, removes its folder and exits as the command did (128 + n after signal n; note that
// `go run` turns every failure into 1). When the variable is already set it only runs the command.
package main
