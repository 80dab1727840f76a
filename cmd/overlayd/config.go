package main

import "github.com/spf13/cobra"

func newConfigCommand(e *env) *cobra.Command {
	var s settings
	var check bool
	c := &cobra.Command{
		Use:   "config",
		Short: "Print the settings in force and where each comes from",
		Long: "Config prints the settings as a YAML file that means the same, with the origin of each value as a\n" +
			"comment (default, file, environment, flag) and passwords masked.\n\n" +
			"Layers, later ones win: defaults, the file of --config, OVERLAYD_* variables, flags. The variable of a\n" +
			"key is the key in capitals with _ for dots: database.url is OVERLAYD_DATABASE_URL. Lists of text are\n" +
			"written with commas; services and feeds are read from the file only.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := s.load(e, c, nil)
			if err != nil {
				return err
			}
			if err := l.WriteYAML(e.stdout); err != nil {
				return err
			}
			if !check {
				return nil
			}
			if err := l.Validate(); err != nil {
				return invalid(err)
			}
			return nil
		},
	}
	s.register(c, flagBaseURL, flagListen, flagOperator, flagDatabase, flagLogLevel, flagLogFormat)
	c.Flags().BoolVar(&check, "check", false, "fail, and say why, when `serve` would refuse these settings")
	return c
}
