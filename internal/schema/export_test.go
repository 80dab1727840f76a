package schema

import (
	"context"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// Set is a schema of a test's own.
type Set struct{ set }

func Load(fsys fs.FS) (Set, error) {
	s, err := load(fsys)
	return Set{s}, err
}

func (s Set) Names() []string {
	var names []string
	for _, m := range s.set {
		names = append(names, m.Name)
	}
	return names
}

func (s Set) Hash() string { return s.hash() }

func (s Set) Migrate(ctx context.Context, conn *pgx.Conn, log func(int, string)) error {
	return s.migrate(ctx, conn, log)
}

func (s Set) Status(ctx context.Context, conn *pgx.Conn) (current, target int32, pending []Migration, err error) {
	return s.status(ctx, conn)
}

func (s Set) Check(ctx context.Context, conn *pgx.Conn) error { return s.check(ctx, conn) }

// Files is what is compiled in.
func Files() fs.FS { return files }
