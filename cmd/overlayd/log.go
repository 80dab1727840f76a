package main

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// newLogger writes records to w: as text on a terminal, else as JSON, unless a
// format is asked for. The arguments were validated with the configuration.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	var threshold slog.Level
	if err := threshold.UnmarshalText([]byte(level)); err != nil {
		threshold = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: threshold}
	if format == "text" || format != "json" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
