package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/soak"
)

func main() {
	var c soak.Config
	flag.StringVar(&c.URL, "database", "", "an empty database, as its owner; none: a private Postgres, fsync on")
	flag.DurationVar(&c.Time, "time", 3*time.Minute, "how long it measures")
	flag.DurationVar(&c.WarmUp, "warmup", 30*time.Second, "how long it runs before that")
	flag.IntVar(&c.Writers, "writers", 8, "writers")
	flag.IntVar(&c.Sessions, "sessions", 50, "sessions at a time")
	flag.IntVar(&c.Rows, "rows", 20_000, "rows")
	flag.DurationVar(&c.Pause, "pause", 0, "how long a writer rests after each group")
	verbose := flag.Bool("v", false, "log to stderr")
	flag.Parse()
	if *verbose {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, c)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "soak: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c soak.Config) (err error) {
	if c.URL == "" {
		folder, err := os.MkdirTemp("", "overlayd-soak-")
		if err != nil {
			return err
		}
		if err := os.Chmod(folder, 0o711); err != nil { // the server may run as another user, who has to pass through
			return err
		}
		server, err := localpg.Start(ctx, localpg.Options{Data: folder})
		if err != nil {
			return err
		}
		defer func() {
			done := context.WithoutCancel(ctx)
			_ = server.Stop(done)
			_ = localpg.Remove(done, folder)
		}()
		c.URL = server.URL()
	}
	c.Out = os.Stdout
	report, err := soak.Run(ctx, c)
	report.Print(os.Stdout)
	return err
}
