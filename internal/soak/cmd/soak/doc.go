// Command soak runs internal/soak on a private Postgres, or on an empty database that is given, and prints its table.
//
//	go run ./internal/soak/cmd/soak -time 3m
package main
