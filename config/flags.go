package config

import (
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"
)

// fileFlag names the settings file.
const fileFlag = "config"

// Flag is a flag that gives the text of the field with its name. A command can have others with such
// names, which are no settings.
type Flag struct{ *cli.StringFlag }

// Flags returns the flags of the fields in some groups, for a command or for
// all of them. With the group [Common] comes --config. The flags only take
// texts, those of switches also none, which is true; [Load] reads them.
func Flags(groups ...Group) []cli.Flag {
	var flags []cli.Flag
	if slices.Contains(groups, Common) {
		flags = append(flags, &cli.StringFlag{
			Name:  fileFlag,
			Usage: fmt.Sprintf("settings `FILE` [$%s]", FileEnv),
		})
	}
	for _, f := range fields {
		if f.NoFlag || !slices.Contains(groups, f.Group) {
			continue
		}
		// cli's own field for the variable would read it, and then a variable could
		// not be distinguished from a flag.
		usage := fmt.Sprintf("%s [$%s]", f.Usage, f.Env())
		if f.isSwitch() {
			flags = append(flags, &cli.BoolFlag{Name: f.Flag(), Usage: usage, DefaultText: f.DefaultText()})
			continue
		}
		flags = append(flags, Flag{&cli.StringFlag{Name: f.Flag(), Usage: usage, DefaultText: f.DefaultText()}})
	}
	return flags
}

// FromCLI returns the sources of a command: its flags and those of the commands
// above it, and the environment of the process.
func FromCLI(c *cli.Context) Sources {
	return Sources{
		File: c.String(fileFlag),
		Env:  os.LookupEnv,
		Flag: func(name string) (string, bool) { return c.String(name), c.IsSet(name) && isSetting(c, name) },
	}
}

// isSetting reports whether the flag that a name means is a [Flag], or a switch.
func isSetting(c *cli.Context, name string) bool {
	for _, at := range c.Lineage() {
		if at.Command == nil {
			continue
		}
		for _, f := range at.Command.Flags {
			if slices.Contains(f.Names(), name) {
				_, own := f.(*cli.StringFlag)
				return !own
			}
		}
	}
	return false
}
