package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
)

func main() {
	args, durability := os.Args[1:], pgtest.Fast
	if len(args) > 0 && args[0] == "-durable" {
		args, durability = args[1:], pgtest.Durable
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: withpg [-durable] -- COMMAND [ARGUMENT]...")
		os.Exit(2)
	}
	code, err := run(args, durability)
	if err != nil {
		fmt.Fprintf(os.Stderr, "withpg: %v\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns the exit code of the command, and an error for what withpg itself could not do.
func run(args []string, durability pgtest.Durability) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	env := os.Environ()
	if os.Getenv(pgtest.EnvURL) == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		early, interrupted := context.WithCancelCause(ctx)
		defer interrupted(nil)
		started := make(chan struct{})
		go func() {
			select {
			case s := <-signals:
				interrupted(fmt.Errorf("interrupted by %s", s))
			case <-started:
			}
		}()
		server, err := pgtest.StartServer(early, durability)
		close(started)
		if err != nil {
			return 1, err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			err = errors.Join(err, server.Stop(ctx))
		}()
		env = append(env, pgtest.EnvURL+"="+server.URL)
	}
	return command(args, env, signals)
}

func command(args, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 127, fmt.Errorf("run %s: %w", args[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal))
		case err := <-ended:
			exit, failed := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				return 0, nil
			case !failed:
				return 1, fmt.Errorf("run %s: %w", args[0], err)
			}
			if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return exit.ExitCode(), nil
		}
	}
}
