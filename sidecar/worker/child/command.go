package child

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// DefaultOutputLimit is the default of [Command.OutputLimit]: 64 MiB.
const DefaultOutputLimit = 64 << 20

// longest is the longest duration of a command, as in the settings.
const longest = 365 * 24 * time.Hour

// Command is the command of a child.
type Command struct {
	// Argv is the command with its arguments. A name without a slash is searched in the
	// PATH of Env; a relative name starts at Dir.
	Argv []string
	// Env is the whole environment of the command, as NAME=VALUE. The last value of a
	// name counts.
	Env []string
	// Dir is the working directory: the worker's if empty.
	Dir string
	// Stdin is the input of the command.
	Stdin []byte
	// StopGrace is how long the command may take to stop after SIGTERM; if 0, it is killed
	// at once.
	StopGrace time.Duration
	// Timeout is how long the command may run before it is stopped; 0 for no limit.
	Timeout time.Duration
	// OutputLimit is how many bytes of its output are kept: see [DefaultOutputLimit]. Of a
	// longer output, the beginning and the end are kept.
	OutputLimit int64
}

// validate returns a problem that names the field if the command is not valid. The
// supervisor finds out whether the program exists.
func (c *Command) validate() error {
	switch {
	case len(c.Argv) == 0 || c.Argv[0] == "":
		return problem.Field("argv", "it must begin with the name of a program")
	case slices.ContainsFunc(c.Argv, hasNUL):
		return problem.Field("argv", "an argument cannot contain a NUL byte")
	case hasNUL(c.Dir):
		return problem.Field("dir", "a path cannot contain a NUL byte")
	case c.StopGrace < 0 || c.StopGrace > longest:
		return problem.Field("stop_grace", "%s must be a duration from 0 to a year", c.StopGrace)
	case c.Timeout < 0 || c.Timeout > longest:
		return problem.Field("timeout", "%s must be a duration of at most a year, or 0 for none", c.Timeout)
	case c.OutputLimit < 0:
		return problem.Field("output_limit", "%d must be a number of bytes, or 0 for %d", c.OutputLimit, DefaultOutputLimit)
	}
	for _, e := range c.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" || hasNUL(e) {
			// The value may be a secret.
			return problem.Field("env", "%q must be NAME=VALUE without a NUL byte", name)
		}
	}
	return nil
}

func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }

// lastOfEach keeps the last value of each name, in the order of the first ones.
func lastOfEach(env []string) []string {
	at := map[string]int{}
	var kept []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			kept[i] = e
			continue
		}
		at[name] = len(kept)
		kept = append(kept, e)
	}
	return kept
}

// commandFile is command.json. Texts are stored as bytes, because they need not be UTF-8.
type commandFile struct {
	store.V
	Argv        [][]byte      `json:"argv"`
	Env         [][]byte      `json:"env,omitempty"`
	Dir         []byte        `json:"dir,omitempty"`
	HasStdin    bool          `json:"stdin,omitempty"`
	StopGrace   time.Duration `json:"stop_grace"`
	Timeout     time.Duration `json:"timeout,omitempty"`
	OutputLimit int64         `json:"output_limit"`
}

// encodeCommand writes a command without its stdin, which has a separate file.
func encodeCommand(c Command) []byte {
	limit := c.OutputLimit
	if limit == 0 {
		limit = DefaultOutputLimit
	}
	return store.Encode(commandFile{
		V: store.Now, Argv: toBytes(c.Argv), Env: toBytes(lastOfEach(c.Env)), Dir: []byte(c.Dir), HasStdin: len(c.Stdin) > 0,
		StopGrace: c.StopGrace, Timeout: c.Timeout, OutputLimit: limit,
	})
}

// decodeCommand reads a command, and whether it has a file for stdin.
func decodeCommand(data []byte) (c Command, hasStdin bool, err error) {
	var f commandFile
	if err := store.Decode(commandName, data, &f); err != nil {
		return Command{}, false, fileError(err)
	}
	c = Command{
		Argv: toStrings(f.Argv), Env: toStrings(f.Env), Dir: string(f.Dir),
		StopGrace: f.StopGrace, Timeout: f.Timeout, OutputLimit: f.OutputLimit,
	}
	if err := c.validate(); err != nil {
		return Command{}, false, &FileError{Name: commandName, Reason: err}
	}
	if c.OutputLimit == 0 {
		return Command{}, false, &FileError{Name: commandName, Reason: errors.New("output_limit is missing")}
	}
	return c, f.HasStdin, nil
}

func toBytes(texts []string) [][]byte {
	all := make([][]byte, len(texts))
	for i, s := range texts {
		all[i] = []byte(s)
	}
	return all
}

func toStrings(texts [][]byte) []string {
	all := make([]string, len(texts))
	for i, b := range texts {
		all[i] = string(b)
	}
	return all
}

// Verb is the subcommand of berth that runs [Supervise].
const Verb = "supervise"
