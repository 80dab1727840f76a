package localpg

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Tool finds a program, as pg_dump, in the installation that new servers are started from. Not every installation has every
// program.
func Tool(ctx context.Context, name string) (string, error) {
	for dir := range machine().folders(ctx) {
		bin, err := inspect(ctx, dir)
		if err != nil {
			continue
		}
		path := filepath.Join(bin.dir, name)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find %s of PostgreSQL %s: %w", name, bin.version, err)
		}
		return path, nil
	}
	return "", fmt.Errorf("find %s: no PostgreSQL server programs on this machine: %s", name, howToInstall)
}
