package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/overlayd/overlayd/internal/sample/vectors"
)

func main() {
	write := flag.Bool("w", false, "write the files anew")
	dir := flag.String("dir", "testvectors/reconcile", "folder of the files")
	flag.Parse()
	changed, err := vectors.Sync(*dir, *write)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range changed {
		fmt.Println(name)
	}
	if len(changed) > 0 && !*write {
		fmt.Fprintln(os.Stderr, "these files are not what the generator makes: run it with -w")
		os.Exit(1)
	}
}
