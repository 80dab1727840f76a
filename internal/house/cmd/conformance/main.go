package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/internal/house"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	write := flag.Bool("w", false, "write docs/conformance.md instead of checking it")
	race := flag.Bool("race", false, "list with the race detector built in, to share the builds of go test -race")
	ran := flag.String("ran", "", "compare with the tests that were run, of a `file` of gotest -ran, instead of asking go test for a list")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "conformance: no arguments are taken, only -w, -race and -ran")
		os.Exit(2)
	}
	wrong, err := run(ctx, *write, *race, *ran)
	if err != nil {
		fmt.Fprintf(os.Stderr, "conformance: %v\n", err)
		os.Exit(2)
	}
	for _, w := range wrong {
		fmt.Fprintln(os.Stderr, w)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, write, race bool, ran string) (wrong []string, err error) {
	root, err := house.Root()
	if err != nil {
		return nil, err
	}
	tree, err := house.Load(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	if write {
		name := filepath.Join(root, filepath.FromSlash(house.ConformanceFile))
		doc, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the document to be renewed: %w", err)
		}
		if next := house.Conformance(doc, tree); !bytes.Equal(doc, next) {
			if err := os.WriteFile(name, next, 0o644); err != nil {
				return nil, fmt.Errorf("write the renewed document: %w", err)
			}
		}
		if tree, err = house.Load(os.DirFS(root)); err != nil {
			return nil, err
		}
		return house.CheckConformance(tree), nil
	}
	wrong = house.CheckConformance(tree)
	var listed []string
	if ran == "" {
		listed, err = list(ctx, root, race)
	} else {
		listed, err = readRan(ran)
	}
	if err != nil {
		return nil, err
	}
	wrong = append(wrong, compare(root, tree, listed)...)
	if len(wrong) == 0 {
		fmt.Printf("conformance: %d tests, listed by go test and in the source alike; %s agrees\n", len(listed), house.ConformanceFile)
	}
	return wrong, nil
}

// list asks the built test programs for their tests: "folder Name".
func list(ctx context.Context, root string, race bool) ([]string, error) {
	args := []string{"test", "-vet=off", "-list", "^(Test|Fuzz)"}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./...")...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); ok {
			os.Stderr.Write(out)
		}
		return nil, fmt.Errorf("go test -list: %w", err)
	}
	return parseList(string(out)), nil
}

// parseList reads what go test -list prints: a package's names, then "ok",
// its import path and the time.
func parseList(out string) []string {
	var listed, names []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Test") || strings.HasPrefix(line, "Fuzz") {
			names = append(names, line)
			continue
		}
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "ok" {
			dir := folder(fields[1])
			for _, name := range names {
				listed = append(listed, dir+" "+name)
			}
			names = nil
		}
	}
	return listed
}

// readRan reads what gotest -ran has written.
func readRan(name string) (ran []string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read which tests were run: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		pkg, test, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && (strings.HasPrefix(test, "Test") || strings.HasPrefix(test, "Fuzz")) { // and no examples
			ran = append(ran, folder(pkg)+" "+test)
		}
	}
	return ran, nil
}

// folder is where a package of this module is.
func folder(pkg string) string {
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(pkg, house.Module), "/"), ".")
}

// compare reports tests that only the source or only the built programs know.
// Files that this machine does not build are left out, and so are those of the
// modules of their own, which go test ./... does not reach (make test-modules).
func compare(root string, tree *house.Tree, listed []string) []string {
	var wrong, source []string
	for _, test := range tree.Tests() {
		if ownModule(root, test.Dir) {
			continue
		}
		built, err := build.Default.MatchFile(filepath.Join(root, filepath.FromSlash(test.Dir)), filepath.Base(test.File))
		if err == nil && !built {
			continue
		}
		source = append(source, test.Dir+" "+test.Name)
	}
	for _, name := range source {
		if !slices.Contains(listed, name) {
			wrong = append(wrong, fmt.Sprintf("%s is in the source, but go test does not list it", name))
		}
	}
	for _, name := range listed {
		if !slices.Contains(source, name) {
			wrong = append(wrong, fmt.Sprintf("%s is listed by go test, but not found in the source", name))
		}
	}
	return wrong
}

// ownModule reports whether a folder of the tree lies in a module below root.
func ownModule(root, dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(dir), "go.mod")); err == nil {
			return true
		}
	}
	return false
}
