// Command vectors compares testvectors/reconcile with what the generator makes, or writes it.
//
//	go run ./internal/sample/cmd/vectors       # compare; exit code 1 on a difference
//	go run ./internal/sample/cmd/vectors -w    # write the files anew
package main
