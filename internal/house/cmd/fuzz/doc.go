// Command fuzz runs every fuzz target of the tree, one after another, and
// prints a table of what each did.
//
//	go run ./internal/house/cmd/fuzz -time 60s [-only REGEXP] [-parallel N]
//
// The packages are those whose source has a fuzz target; the targets are what
// go test -list names in them. A target that fails is reported with its output
// (go test keeps the input under testdata/fuzz), and the rest still run.
//
// Memory is read from /proc while a target runs, so only Linux has the column:
// the largest resident size that any one fuzzing process reached, all told
// (the kernel's own high-water mark), and the largest anonymous part of it that
// was seen, which is heap and stacks without the program and the shared corpus.
// About 100 MiB of it are the mutator's own buffer in every fuzzing process.
//
// It exits with 0 when every target ran and none failed, 1 when one failed,
// 2 when it could not run them.
package main
