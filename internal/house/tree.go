package house

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Module is the import path of this module.
const Module = "github.com/overlayd/overlayd"

// File is one parsed Go source file.
type File struct {
	Path  string // slash-separated, relative to the root of the tree
	Dir   string // the folder of Path, "." for the root
	Test  bool   // the name ends in _test.go
	Lines int    // number of lines
	AST   *ast.File
}

// Imports returns the import paths of the file, in source order.
func (f *File) Imports() []string {
	paths := make([]string, 0, len(f.AST.Imports))
	for _, spec := range f.AST.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// ImportName returns the name under which the file uses the package at
// importPath, and whether it imports it at all.
func (f *File) ImportName(importPath string) (string, bool) {
	for _, spec := range f.AST.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err != nil || p != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name, true
		}
		return path.Base(importPath), true
	}
	return "", false
}

// Text is one file that is not Go source but ships with it.
type Text struct {
	Path string
	Data []byte
}

// Tree is the whole source tree, read once. It is not changed after Load.
type Tree struct {
	Fset  *token.FileSet
	Files []*File // by path
	Texts []Text  // every text file, Go files included, by path
}

// Root finds the folder that holds go.mod, from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("house: find the working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("house: no go.mod here or above: run this inside the module")
		}
		dir = parent
	}
}

// Load reads every file of the tree and parses those that are Go source. A
// file that does not parse is an error: nothing can be said about such a tree.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{Fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != "." && skipFolder(base) {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		if bytes.IndexByte(data, 0) >= 0 {
			return nil // not text
		}
		t.Texts = append(t.Texts, Text{Path: name, Data: data})
		if !strings.HasSuffix(base, ".go") || strings.HasPrefix(base, "_") || strings.HasPrefix(base, ".") {
			return nil
		}
		parsed, err := parser.ParseFile(t.Fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		t.Files = append(t.Files, &File{
			Path:  name,
			Dir:   path.Dir(name),
			Test:  strings.HasSuffix(base, "_test.go"),
			Lines: bytes.Count(data, []byte("\n")),
			AST:   parsed,
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("house: read the source tree: %w", err)
	}
	return t, nil
}

// skipFolder reports folders that are not source: what the go command skips,
// and what the build leaves behind. The folder of the CI script is source.
func skipFolder(base string) bool {
	switch base {
	case ".ci":
		return false
	case "testdata", "vendor", "bin", "node_modules":
		return true
	}
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}

// Dirs returns the folders that hold Go files, in order.
func (t *Tree) Dirs() []string {
	var dirs []string
	for _, f := range t.Files {
		dirs = append(dirs, f.Dir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// Text returns the content of a file of the tree, nil when there is none.
func (t *Tree) Text(name string) []byte {
	for _, text := range t.Texts {
		if text.Path == name {
			return text.Data
		}
	}
	return nil
}

// at renders a position as path:line.
func (t *Tree) at(pos token.Pos) string {
	p := t.Fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}
