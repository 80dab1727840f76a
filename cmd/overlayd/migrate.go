package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/schema"
)

func newMigrateCommand(e *env) *cobra.Command {
	var s settings
	var dry bool
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date",
		Long: "Migrate applies the migrations this program carries and the database lacks, in order, under a lock:\n" +
			"running it twice, or on several machines at once, is harmless. Migrations only go forward. Databases that\n" +
			"feeds have of their own (feeds in the file of --config) are brought up to date too, after the main one.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := s.load(e, c, nil)
			if err != nil {
				return err
			}
			if l.Database.URL == "" {
				return errors.New("database.url is missing; set it in the file of --config, as OVERLAYD_DATABASE_URL or with --database-url")
			}
			return migrateAll(c.Context(), &l.Config, func(ctx context.Context, of, url string) error {
				if of != "" {
					if _, err := fmt.Fprintln(e.stdout, of+":"); err != nil {
						return err
					}
				}
				return migrate(ctx, e, url, dry)
			})
		},
	}
	s.register(c, flagDatabase)
	c.Flags().BoolVar(&dry, "dry-run", false, "show the migrations that are missing and change nothing")
	return c
}

func migrate(ctx context.Context, e *env, url string, dry bool) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the session ends with the process at the latest
	current, target, pending, err := schema.Status(ctx, conn)
	if err != nil {
		return err
	}
	if len(pending) == 0 && current == target {
		_, err := fmt.Fprintf(e.stdout, "the schema is up to date (version %d)\n", current)
		return err
	}
	if dry {
		for _, m := range pending {
			if _, err := fmt.Fprintf(e.stdout, "would apply %s\n", m.Name); err != nil {
				return err
			}
		}
	}
	if dry && current <= target {
		return nil
	}
	if err := schema.Migrate(ctx, conn, func(_ int, name string) { fmt.Fprintf(e.stdout, "applying %s\n", name) }); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "the schema is up to date (version %d)\n", target)
	return err
}
