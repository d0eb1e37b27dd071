package main

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// commandFlags say how the command of a command line is run. Without one they have
// no meaning.
func commandFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "items", Usage: "run the command once for each item of `FILE`, a line each or a JSON array; - for stdin"},
		&cli.IntFlag{Name: "concurrency", Usage: "at most `N` items at a time", DefaultText: "no bound"},
		&cli.StringFlag{Name: "queue", Usage: "the `QUEUE` that workers take it from", DefaultText: step.DefaultQueue},
		&cli.StringFlag{Name: "task", Usage: "count it against the limit of the pool task.`TASK`, if there is one"},
		&cli.StringFlag{Name: "timeout", Usage: "end an attempt after `TIME`", DefaultText: "none"},
	}
}

// mainStep is the step of a command line whose run has no name, or none that a step
// can have.
const mainStep = "main"

// commandStep makes the step of a command line: the command behind its flags, once or
// for each item. The slots are those that each instance takes.
func commandStep(c *cli.Context, run string, slots map[string]int) (step.Spec, error) {
	s := step.Spec{
		Name: mainStep, Command: c.Args().Slice(), Pools: slots,
		Concurrency: c.Int("concurrency"), Queue: c.String("queue"), Task: step.Task{Name: c.String("task")}, Retries: c.Int("retries"),
	}
	if pool.ValidateName(run) == nil {
		s.Name = run
	}
	for _, name := range []string{"queue", "task", "items", "timeout"} {
		if c.IsSet(name) && c.String(name) == "" {
			return s, usagef("--%s needs a value", name)
		}
	}
	switch suffix := filepath.Ext(s.Command[0]); suffix {
	case ".yaml", ".yml", ".json":
		return s, usagef("%q is no command: 'berth submit -f %s' reads a file", s.Command[0], s.Command[0])
	}
	if c.IsSet("timeout") {
		d, err := time.ParseDuration(c.String("timeout"))
		if err != nil {
			return s, usagef("--timeout can't be %q: it is a duration such as 30s, 10m or 1h30m", c.String("timeout"))
		}
		s.Timeout = step.Duration(d)
	}
	if c.IsSet("concurrency") && !c.IsSet("items") {
		return s, usagef("--concurrency is about items: it needs --items")
	}
	if c.IsSet("items") {
		items, err := flagItems(c)
		if err != nil {
			return s, err
		}
		s.Items = items
	}
	return s, nil
}

// flagItems reads the items of a command line.
func flagItems(c *cli.Context) (*step.Items, error) {
	name := c.String("items")
	if name == "-" {
		list, err := itemsFrom("stdin", io.NopCloser(c.App.Reader))
		if err != nil {
			return nil, problem.Field("items", "%w", err)
		}
		return &step.Items{List: list}, nil
	}
	// Unlike a file that names another one, this may be a pipe: a shell's <(…).
	list, err := openItems(name)
	if err != nil {
		return nil, problem.Field("items", "%w", err)
	}
	return &step.Items{List: list}, nil
}

// withoutCommand refuses what has no meaning without a command.
func withoutCommand(c *cli.Context) error {
	for _, f := range commandFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			return usagef("--%s is about a command: it needs one, as in 'berth submit --%s … -- COMMAND'", name, name)
		}
	}
	return nil
}

// asFlags says what is wrong with the step of a command line as its user knows it:
// steps.main.queue is --queue.
func asFlags(err error, name string) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return err
	}
	field, ok := strings.CutPrefix(p.Field, "steps."+name+".")
	if !ok {
		return err
	}
	q := *p
	q.Field = field
	return &q
}
