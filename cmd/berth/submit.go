package main

import (
	"fmt"
	"maps"

	"github.com/oklog/ulid/v2"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

func submitCommand() *cli.Command {
	return &cli.Command{
		Name:     "submit",
		Category: running,
		Usage:    "put a run into the queue, and print its id",
		Description: `The coordinator admits it when the limits allow it ('berth limits'), and an executor
starts and finishes it over HTTP. A file says the same as the flags, in YAML or
JSON:

   id: nightly-2026-01-02    # left out: a new one
   name: nightly
   owner: data team
   priority: 10              # -1000 to 1000, left out: 0
   retries: 2                # after a lost executor, left out: 0
   tags: {env: prod}         # what limits are about
   labels: {ticket: "4711"}  # for people

Flags beside a file win over it; tags and labels are added to those of the file.
To submit the same again with the same id finds the run that there is.

With --wait it goes on until the run has ended: 0 if it has succeeded, 1 if it
has failed or was canceled. Ctrl-C ends the wait, not the run.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` to read, - for stdin"},
			&cli.StringFlag{Name: "id", Usage: "`ID` of the run", DefaultText: "a new one"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` for people; many runs can have the same"},
			&cli.StringSliceFlag{Name: "tag", Usage: "`KEY=VALUE` that limits are about; may be repeated"},
			&cli.StringSliceFlag{Name: "label", Usage: "`KEY=VALUE` for people; may be repeated"},
			&cli.StringFlag{Name: "owner", Usage: "`TEXT` that says who it belongs to"},
			&cli.IntFlag{Name: "priority", Usage: fmt.Sprintf("`N` from %d to %d; higher goes first", pool.MinPriority, pool.MaxPriority)},
			&cli.IntFlag{Name: "retries", Usage: fmt.Sprintf("queue it again `N` times after its executor was lost, at most %d", run.MaxRetries)},
			&cli.BoolFlag{Name: "wait", Usage: "wait until it has ended, and tell how it goes"},
		},
		Action: submit,
	}
}

func submit(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	asked, err := submission(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		r, created, err := s.Submit(c.Context, asked.id, asked.spec)
		if err != nil {
			return err
		}
		if !created {
			say(c, "run %s was submitted before; it is %s", r.ID, r.Status)
		}
		show := func(r *run.Run) error {
			return p.print(runRecord(r), func(out *page) { out.line("%s", r.ID) })
		}
		if !c.Bool("wait") {
			return show(r)
		}
		if p.format == "table" { // the id is of use while it runs
			if err := show(r); err != nil {
				return err
			}
			show = func(r *run.Run) error {
				if r.Status == run.Succeeded { // or it is an error
					say(c, "%s", endText(r))
				}
				return nil
			}
		}
		return awaitRun(c, s, r.ID, show)
	})
}

// asked is what is submitted.
type asked struct {
	id   string
	spec run.Spec
}

// submission reads what the file and the flags ask for.
func submission(c *cli.Context) (a asked, err error) {
	if c.IsSet("file") {
		if a, err = readSubmission(c); err != nil {
			return a, err
		}
	}
	for name, to := range map[string]*string{"id": &a.id, "name": &a.spec.Name, "owner": &a.spec.Owner} {
		if c.IsSet(name) {
			*to = c.String(name)
		}
	}
	for name, to := range map[string]*int{"priority": &a.spec.Priority, "retries": &a.spec.Retries} {
		if c.IsSet(name) {
			*to = c.Int(name)
		}
	}
	for name, to := range map[string]*map[string]string{"tag": &a.spec.Tags, "label": &a.spec.Labels} {
		pairs, err := parsePairs(name, c.StringSlice(name))
		if err != nil {
			return a, err
		}
		if *to == nil {
			*to = pairs
		} else {
			maps.Copy(*to, pairs)
		}
	}
	if a.id == "" && !c.IsSet("id") {
		a.id = ulid.Make().String()
	}
	if err := run.ValidateID(a.id); err != nil {
		return a, err
	}
	return a, a.spec.Validate()
}
