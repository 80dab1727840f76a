package vectors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/overlayd/overlayd/testvectors"
)

// Files makes every case: the names of the files in testvectors/reconcile, and their bytes.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, s := range slices.Concat(evidenceCases(), spendingCases(), sourceCases()) {
		name := s.Name + ".json"
		if _, ok := files[name]; ok {
			return nil, fmt.Errorf("two cases are named %s", s.Name)
		}
		data, err := encode(&s.Case)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		files[name] = data
	}
	return files, nil
}

// encode writes a case as it stands in its file.
func encode(c *testvectors.Case) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(c); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Sync compares the files of a folder with those that are made, and returns the names of those that differ, are missing
// or are too many, in order. With write it brings the folder up to date.
func Sync(dir string, write bool) (changed []string, err error) {
	made, err := Files()
	if err != nil {
		return nil, err
	}
	there, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range there {
		if _, ok := made[filepath.Base(file)]; ok {
			continue
		}
		changed = append(changed, filepath.Base(file))
		if write {
			if err := os.Remove(file); err != nil {
				return nil, err
			}
		}
	}
	for name, data := range made {
		file := filepath.Join(dir, name)
		old, err := os.ReadFile(file)
		switch {
		case err == nil && bytes.Equal(old, data):
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		changed = append(changed, name)
		if write {
			if err := os.WriteFile(file, data, 0o644); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(changed)
	return changed, nil
}
