package child

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// DefaultOutputLimit is how much output of a command is kept unless it is said.
const DefaultOutputLimit = 64 << 20

// longest is the longest duration that a command may have, as in the settings.
const longest = 365 * 24 * time.Hour

// Command is what a child is to run.
type Command struct {
	// Argv is the command and its arguments. A name without a slash is looked for
	// in the PATH of Env; one that is relative begins at Dir.
	Argv []string
	// Env is all of the command's environment, as NAME=VALUE. Of two values for one
	// name the later counts.
	Env []string
	// Dir is where the command runs: the worker's own directory if it is empty.
	Dir string
	// Stdin is what the command reads.
	Stdin []byte
	// StopGrace is how long the command may take to stop after SIGTERM; 0: it is
	// killed at once.
	StopGrace time.Duration
	// Timeout is how long the command may run before it is told to stop; 0: as long
	// as it likes.
	Timeout time.Duration
	// OutputLimit is how many bytes of its output are kept, [DefaultOutputLimit] if
	// it is 0. What comes behind is read and dropped.
	OutputLimit int64
}

// validate refuses what can't be run by anybody. Whether there is such a program
// is found out by the supervisor.
func (c *Command) validate() error {
	switch {
	case len(c.Argv) == 0 || c.Argv[0] == "":
		return problem.Field("argv", "it must begin with the name of a program")
	case slices.ContainsFunc(c.Argv, hasNUL):
		return problem.Field("argv", "an argument can't hold a zero byte")
	case hasNUL(c.Dir):
		return problem.Field("dir", "a path can't hold a zero byte")
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
			return problem.Field("env", "%q must be NAME=VALUE without a zero byte", name)
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

// lookup returns the value of a name in an environment.
func lookup(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// commandFile is command.json. Texts are bytes there, since those of a system need
// not be UTF-8.
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

// encodeCommand writes a command. Its stdin is a file of its own.
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

// decodeCommand reads what encodeCommand wrote, and whether there is a file for
// stdin.
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
