package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/config"
)

// settings are the flags of commands that read the configuration.
type settings struct {
	file  string
	flags map[string]*string // flag -> value; keyed by name
	keys  map[string]string  // flag -> key of the configuration
}

// foreignVariables are OVERLAYD_ variables that are no settings of a provider.
func foreignVariables() []string { return []string{"CONFIG", "OPERATOR_URL", "OPERATOR_TOKEN"} }

// register adds --config and a flag for each of the keys given as flag, key, help.
func (s *settings) register(c *cobra.Command, flags ...[3]string) {
	s.flags, s.keys = map[string]*string{}, map[string]string{}
	c.Flags().StringVarP(&s.file, "config", "c", "", "YAML `file` of settings (OVERLAYD_CONFIG)")
	for _, f := range flags {
		s.flags[f[0]] = c.Flags().String(f[0], "", f[2])
		s.keys[f[0]] = f[1]
	}
}

// The flags commands choose from.
var (
	flagBaseURL   = [3]string{"base-url", "baseURL", "public base `URL` of the provider"}
	flagListen    = [3]string{"listen", "listen", "public `address`, host:port"}
	flagOperator  = [3]string{"operator", "operator.listen", "operator `address`, host:port"}
	flagDatabase  = [3]string{"database-url", "database.url", "Postgres `URL`"}
	flagLogLevel  = [3]string{"log-level", "log.level", "least `level` logged: debug, info, warn or error"}
	flagLogFormat = [3]string{"log-format", "log.format", "`format` of the log: text, json or auto"}
)

// load reads all layers; defaults are the command's own.
func (s *settings) load(e *env, c *cobra.Command, defaults map[string]any) (*config.Loaded, error) {
	in := config.Input{
		Command: c.CommandPath(), Defaults: defaults, File: s.file,
		Environ: e.environ, Foreign: foreignVariables(), Flags: map[string]config.Flag{},
	}
	if in.File == "" {
		in.File = e.lookup("OVERLAYD_CONFIG")
	}
	for name, value := range s.flags {
		if c.Flags().Changed(name) {
			in.Flags[s.keys[name]] = config.Flag{Name: name, Value: *value}
		}
	}
	return config.Load(in)
}

// invalid puts a heading above the sentences of a configuration at fault.
func invalid(err error) error {
	return fmt.Errorf("the configuration cannot be served as it is:\n%w", err)
}
