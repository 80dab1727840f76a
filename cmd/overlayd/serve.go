package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newServeCommand(e *env) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a provider from a database of yours",
		Long: "Serve runs the provider until it is told to stop. It refuses to start on settings it could not keep\n" +
			"promises with, and on a database whose schema is not this program's (`overlayd migrate`).",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return serve(c.Context(), e, c, &s) },
	}
	s.register(c, flagBaseURL, flagListen, flagOperator, flagDatabase, flagLogLevel, flagLogFormat)
	return c
}

func serve(ctx context.Context, e *env, c *cobra.Command, s *settings) error {
	l, err := s.load(e, c, nil)
	if err != nil {
		return err
	}
	if err := l.Validate(); err != nil {
		return invalid(err)
	}
	log := newLogger(e.stderr, l.Log.Level, l.Log.Format)
	p := &provider{config: &l.Config, log: log, exit: e.exit}
	if p.identity, err = identityOf(&l.Config); err != nil {
		return err
	}
	if p.token, err = loadToken(l.Operator.TokenFile); err != nil {
		return err
	}
	if p.public, p.private, err = listen(ctx, &l.Config, log); err != nil {
		return err
	}
	p.ready = func() error {
		log.Info("ready", "baseURL", l.BaseURL, "listen", p.public.Addr().String(), "operator", p.private.Addr().String())
		return nil
	}
	return p.run(ctx)
}
