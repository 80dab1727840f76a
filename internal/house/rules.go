package house

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// MaxLines is the length that no Go file may exceed.
const MaxLines = 700

// CheckPackageComments reports packages that have no package comment, more
// than one, or one outside doc.go.
func CheckPackageComments(t *Tree) []string {
	commented := map[string][]string{}
	for _, f := range t.Files {
		if strings.TrimSpace(f.AST.Doc.Text()) != "" {
			commented[f.Dir] = append(commented[f.Dir], f.Path)
		}
	}
	var wrong []string
	for _, dir := range t.Dirs() {
		want := path.Join(dir, "doc.go")
		switch files := commented[dir]; {
		case len(files) == 0:
			wrong = append(wrong, fmt.Sprintf("%s: no package comment: write %s", dir, want))
		case len(files) > 1:
			wrong = append(wrong, fmt.Sprintf("%s: %d package comments (%s): keep the one in doc.go", dir, len(files), strings.Join(files, ", ")))
		case files[0] != want:
			wrong = append(wrong, fmt.Sprintf("%s: the package comment belongs in %s", files[0], want))
		}
	}
	return wrong
}

// CheckLengths reports Go files of more than MaxLines lines.
func CheckLengths(t *Tree) []string {
	var wrong []string
	for _, f := range t.Files {
		if f.Lines > MaxLines {
			wrong = append(wrong, fmt.Sprintf("%s: %d lines, at most %d: split it by idea", f.Path, f.Lines, MaxLines))
		}
	}
	return wrong
}

// place is something that may be done only in some folders.
type place struct {
	what   string                           // for the message
	reason string                           // why
	in     func(dir string) bool            // where it is allowed
	uses   func(f *File) (found []ast.Node) // where a file does it
}

// CheckPlaces reports what is done outside the one place where it belongs.
// Tests are not looked at: they may feed a parser or start a server.
func CheckPlaces(t *Tree) []string {
	var wrong []string
	for _, p := range places() {
		for _, f := range t.Files {
			if f.Test || p.in(f.Dir) {
				continue
			}
			for _, node := range p.uses(f) {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %s", t.at(node.Pos()), p.what, p.reason))
			}
		}
	}
	return wrong
}

func places() []place {
	only := func(dirs ...string) func(string) bool {
		return func(dir string) bool { return slices.Contains(dirs, dir) }
	}
	return []place{
		{
			what:   "BEEF is parsed outside internal/beef",
			reason: "a hostile BEEF can make the parser ask for terabytes and end the process; only internal/beef counts first",
			in:     only("internal/beef"),
			uses: func(f *File) []ast.Node {
				return names(f, regexp.MustCompile(`^(NewBeefFrom(Bytes|AtomicBytes|Hex)|NewTransactionFromBEEF(Hex)?|FromBEEF|ParseBeef\w*|MergeBeefBytes)$`))
			},
		},
		{
			what:   "an HTTP server is built outside internal/httpserve",
			reason: "its limits (headers, timeouts, OPTIONS) are promises of the protocol and are set once",
			in:     only("internal/httpserve"),
			uses: func(f *File) []ast.Node {
				return members(f, "net/http", regexp.MustCompile(`^(Server|ListenAndServe|ListenAndServeTLS|Serve|ServeTLS)$`))
			},
		},
		{
			what:   "the environment is read outside a program",
			reason: "settings reach a package as arguments, so that two of it can live in one process",
			in: func(dir string) bool {
				return slices.Contains(strings.Split(dir, "/"), "cmd") || within(dir, "internal/pgtest") || within(dir, "bench") // programs, modules of their own
			},
			uses: func(f *File) []ast.Node {
				found := members(f, "os", regexp.MustCompile(`^(Getenv|LookupEnv|Environ|ExpandEnv)$`))
				return append(found, members(f, "syscall", regexp.MustCompile(`^(Getenv|Environ)$`))...)
			},
		},
	}
}

// names finds uses of any function or method with a matching name.
func names(f *File, pattern *regexp.Regexp) []ast.Node {
	var found []ast.Node
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && pattern.MatchString(s.Sel.Name) {
			found = append(found, s)
		}
		return true
	})
	return found
}

// members finds uses of the matching names of one package.
func members(f *File, importPath string, pattern *regexp.Regexp) []ast.Node {
	local, ok := f.ImportName(importPath)
	if !ok {
		return nil
	}
	var found []ast.Node
	ast.Inspect(f.AST, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok || !pattern.MatchString(s.Sel.Name) {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
			found = append(found, s)
		}
		return true
	})
	return found
}

// CheckWords reports text that must not ship: paths of the machine that it
// was written on, and notes of work left undone.
func CheckWords(t *Tree) []string {
	// Put together from pieces, so that this file passes its own rule.
	machine := regexp.MustCompile(`(^|[\s"'` + "`" + `=:(\[])/(wor` + `k|tmp/pl` + `an|roo` + `t|home/\w+|Users/\w+)/`)
	undone := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	var wrong []string
	for _, text := range t.Texts {
		if text.Path == "go.sum" {
			continue
		}
		for i, line := range strings.Split(string(text.Data), "\n") {
			switch {
			case machine.MatchString(line):
				wrong = append(wrong, fmt.Sprintf("%s:%d: a path of one machine", text.Path, i+1))
			case undone.MatchString(line):
				wrong = append(wrong, fmt.Sprintf("%s:%d: work left undone: do it, or file it and say so in words", text.Path, i+1))
			}
		}
	}
	return wrong
}
