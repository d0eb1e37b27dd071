package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
)

// Categories of the commands. The help sorts them by name.
const (
	serving   = "Begin"
	claiming  = "Claim"
	operating = "Look and change"
	helping   = "More"
	running   = "Queue"
)

// newApp returns the command tree.
func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:  "berth",
		Usage: "allots slots of shared pools to jobs on many hosts",
		Description: "Settings come from --config FILE, from BERTH_… variables, and from flags;\n" +
			"the later ones win. Flags may stand anywhere before a --.",
		Writer:    stdout,
		ErrWriter: stderr,
		Flags:     append(config.Flags(config.Common, config.Etcd), outputFlag),
		Commands: []*cli.Command{
			devCommand(), sidecarCommand(), coordinatorCommand(), workerCommand(),
			execCommand(),
			submitCommand(), queueCommand(), runsCommand(), limitsCommand(), sourceCommand(),
			poolsCommand(), claimsCommand(), hostsCommand(),
			applyCommand(), exportCommand(), verifyCommand(), benchCommand(),
			versionCommand(), completionCommand(), superviseCommand(),
		},
		Action:                    group,
		OnUsageError:              onUsageError,
		HideVersion:               true,
		HideHelpCommand:           true,
		DisableSliceFlagSeparator: true, // labels may hold commas
		ExitErrHandler:            func(*cli.Context, error) {},
	}
	for _, c := range app.Commands {
		prepare(c)
	}
	return app
}

// prepare gives a command and those below it what all have in common.
func prepare(c *cli.Command) {
	c.HideHelpCommand = true // "help X Y" is arranged to "X Y --help"
	c.OnUsageError = onUsageError
	if len(c.Subcommands) == 0 {
		c.CustomHelpTemplate = cli.CommandHelpTemplate + "\nThe global options can be given too: see berth --help.\n"
		return
	}
	if c.Action == nil {
		c.Action = group
	}
	for _, sub := range c.Subcommands {
		prepare(sub)
	}
}

// group is what a command does that only has others below it.
func group(c *cli.Context) error {
	name := c.Args().First()
	switch {
	case name == "" && c.Command.Name == c.App.Name:
		return cli.ShowAppHelp(c)
	case name == "":
		return usagef("%s needs a command: %s", c.Command.HelpName, strings.Join(names(c.Command.Subcommands), ", "))
	}
	all := c.Command.Subcommands
	if near := nearest(name, names(all)); near != "" {
		return usagef("%s has no command %q; did you mean %q?", c.Command.HelpName, name, near)
	}
	return usagef("%s has no command %q; there are %s", c.Command.HelpName, name, strings.Join(names(all), ", "))
}

// names of the commands that are shown.
func names(commands []*cli.Command) []string {
	var all []string
	for _, c := range commands {
		if !c.Hidden {
			all = append(all, c.Name)
		}
	}
	return all
}

// args returns the arguments of a command, exactly as many as it has names for
// them.
func args(c *cli.Context, names ...string) ([]string, error) {
	given := c.Args().Slice()
	switch {
	case len(given) < len(names):
		return nil, usagef("%s needs %s", c.Command.HelpName, names[len(given)])
	case len(given) > len(names):
		return nil, usagef("%s has no use for %q", c.Command.HelpName, given[len(names)])
	}
	return given, nil
}

// say writes a line for people beside what the command was asked for.
func say(c *cli.Context, format string, args ...any) {
	fmt.Fprintf(c.App.ErrWriter, "berth: "+format+"\n", args...)
}
