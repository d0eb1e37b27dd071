package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/text"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

func runsEventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "show the events of a run",
		ArgsUsage: "RUN",
		Description: `Events are kept for run_retention, even after the run is deleted. Of a run with many step
instances, all events of the first 150 are kept; of the others only final failures, 20 for
each worker. 'berth runs info' counts all of them.

With --follow, events are printed as they come, until the run has ended. JSON is then one
event a line, and YAML one event a document.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "continue until the run has ended"},
		},
		Action: onEtcd(runsEvents, runArgument),
	}
}

func runsEvents(r *request) error {
	id := r.args[0]
	events, err := r.Runs.Events(r.ctx(), id)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		if _, err := r.Runs.Get(r.ctx(), id); err != nil {
			return err
		}
	}
	if !r.Bool("follow") {
		return r.print(inspect.ListOf(events, inspect.RunEventOf), func(out *page) { runEventsTable(out, events) })
	}
	t := &eventTail{printer: r.printer, begun: r.noHeaders}
	return r.Runs.FollowEvents(r.ctx(), id, run.Place{}, t.write)
}

var runEventsHead = []string{"AT", "EVENT", "BY", "MORE", "REASON"}

func runEventRow(e run.LoggedEvent) []string {
	return []string{e.At.Local().Format(time.DateTime + ".000"), string(e.Type), e.By, pairsText(e.Metadata), e.Reason}
}

func runEventsTable(out *page, events []run.LoggedEvent) {
	var rows [][]string
	for _, e := range events {
		rows = append(rows, runEventRow(e))
	}
	out.table("no events: they are kept for run_retention", runEventsHead, rows)
}

// eventTail prints events as they come.
type eventTail struct {
	*printer
	begun bool // there is a head
}

// write prints events. Of those in a table that come later only the first two
// columns line up: how wide the others will be is not known.
func (t *eventTail) write(events []run.LoggedEvent) error {
	var b bytes.Buffer
	for _, e := range events {
		if err := t.add(&b, e); err != nil {
			return err
		}
	}
	_, err := t.out.Write(b.Bytes())
	return err
}

func (t *eventTail) add(b *bytes.Buffer, e run.LoggedEvent) error {
	switch t.format {
	case "json":
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		return enc.Encode(inspect.RunEventOf(e))
	case "yaml":
		b.WriteString("---\n")
		return writeYAML(b, inspect.RunEventOf(e))
	}
	out := &page{out: b, now: t.now}
	rows := [][]string{runEventRow(e)}
	if !t.begun {
		rows = [][]string{runEventsHead, rows[0]}
	}
	t.begun = true
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
		}
		out.line("%-23s  %-16s  %s  %s  %s", row[0], row[1], row[2], row[3], row[4])
	}
	return nil
}

func runsWaitCommand() *cli.Command {
	return &cli.Command{
		Name:      "wait",
		Usage:     "wait until a run has ended",
		ArgsUsage: "RUN",
		Description: "Reports the progress on stderr. Exits with 0 if the run has succeeded, with 1 if it has\n" +
			"failed or was canceled, and with 75 if it has not ended within --wait.",
		Flags:  []cli.Flag{&cli.DurationFlag{Name: "wait", Value: noLimit, Usage: "longest `TIME` to wait", DefaultText: "no limit"}},
		Action: onEtcd(runsWait, runArgument),
	}
}

func runsWait(r *request) error {
	id := r.args[0]
	wait, err := r.wait()
	if err != nil {
		return err
	}
	return awaitRun(r, id, wait, func(one *run.Run) error {
		return r.print(inspect.RunOf(one), func(out *page) {
			if one.Status == run.Succeeded { // or it is an error
				out.line("%s", endText(one))
			}
		})
	})
}

// noLimit is a wait that is longer than any run.
const noLimit = 100 * 365 * 24 * time.Hour

// awaitRun waits until a run has ended, reports its progress, and prints its end. A run
// that does not succeed, or does not end in time, is an error.
func awaitRun(r *request, id string, wait time.Duration, print func(*run.Run) error) error {
	ended, err := r.Runs.Get(r.ctx(), id)
	if err != nil {
		return err
	}
	if !ended.Status.Ended() {
		if err := r.within(wait, func() error { return notEnded(id, wait) }, func(ctx context.Context) error { ended, err = followRun(ctx, r, id); return err }); err != nil {
			return err
		}
	}
	if err := print(ended); err != nil || ended.Status == run.Succeeded {
		return err
	}
	return errors.New(endText(ended) + failureText(r.ctx(), r.Reader, ended))
}

// notEnded returns the error for a run that has not ended in time.
func notEnded(id string, wait time.Duration) error {
	return fmt.Errorf("run %s has not ended within %s; it goes on, and 'berth runs wait %s' waits again", id, text.Duration(wait), id)
}

// followRun reports the progress of a run until it has ended.
func followRun(ctx context.Context, r *request, id string) (*run.Run, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := r.Runs.Keys.Run(id)
	f := &follower{
		Reader: r.Reader, key: key, progress: newProgress(r.Context, id),
		feed: store.NewFeed(r.Runs.Backend, key, hclog.NewNullLogger(), func() {}),
	}
	fed := inBackground(func() error { return f.feed.Run(ctx) })
	ended, err := f.follow(ctx)
	cancel()
	<-fed
	f.progress.end()
	return ended, err
}

// failureText says behind the end of a run what has failed of it first, and where its output
// is, as far as that can be read.
func failureText(ctx context.Context, in *inspect.Reader, r *run.Run) (text string) {
	if r.Steps == 0 || r.Status != run.Failed {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	if o, err := in.Steps.Overview(ctx, r.ID); err == nil {
		if failed, err := failures(ctx, in, o, 1); err == nil && len(failed) > 0 {
			text = "; " + failed[0].Text() + ": " + clean(firstLine(failed[0].Error))
		}
	}
	if logged, err := in.HasLogs(ctx, r.ID); err == nil && logged {
		text += fmt.Sprintf("; 'berth runs logs %s' has the output", r.ID)
	}
	return text
}

// endText says how a run has ended.
func endText(r *run.Run) string {
	text := fmt.Sprintf("run %s has %s", r.ID, r.Status)
	if r.Status == run.Canceled {
		text = fmt.Sprintf("run %s was canceled", r.ID)
	}
	if r.Error != "" {
		text += ": " + r.Error
	}
	return text
}

const (
	// firstPlacePoll is when the position in the queue is read first: most runs are
	// admitted sooner. All runs are read for it, so it is done rarely, and less often the
	// longer it takes.
	firstPlacePoll = 300 * time.Millisecond
	placePoll      = 2 * time.Second
	placeShare     = 20
	// stepsPoll is how often the steps of a run in progress are read.
	stepsPoll = 500 * time.Millisecond
	// silence is how long etcd may not answer before that is reported.
	silence = 5 * time.Second
)

// follower follows one run until it has ended.
type follower struct {
	*inspect.Reader
	feed     *store.Feed
	key      string // of the run: the feed has those that begin so as well
	progress *progress

	now     *run.Run // nil until it is known
	place   string   // in the queue
	steps   string   // how they go
	replied time.Time
}

func (f *follower) follow(ctx context.Context) (*run.Run, error) {
	poll := time.NewTimer(firstPlacePoll)
	defer poll.Stop()
	f.replied = time.Now()
	for {
		select {
		case m, ok := <-f.feed.Messages():
			if !ok {
				return nil, context.Cause(ctx)
			}
			f.replied = time.Now()
			if err := f.take(m); err != nil {
				return nil, err
			}
			if f.now.Status.Ended() {
				return f.now, nil
			}
		case now := <-poll.C:
			if now.Sub(f.replied) > silence {
				f.progress.report("etcd does not answer, waiting for it")
				poll.Reset(placePoll)
				continue
			}
			f.lookUp(ctx)
			least := placePoll
			if f.now != nil && f.now.Steps > 0 && f.now.Status == run.Running {
				least = stepsPoll
			}
			poll.Reset(max(least, placeShare*time.Since(now)))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if f.now != nil {
			f.progress.report(f.text())
		}
	}
}

// text says how the run goes.
func (f *follower) text() string {
	if f.now.Status == run.Running && f.steps != "" {
		return f.steps
	}
	return progressText(f.now, f.place)
}

// take takes what the feed delivered.
func (f *follower) take(m store.FeedMessage) error {
	gone := problem.New(problem.RunNotFound, "there is no run %q any more", f.key[len(f.Runs.Keys.Runs()):])
	if m.Snapshot != nil {
		found := false
		for _, kv := range m.Snapshot.KVs {
			if string(kv.Key) == f.key {
				found = true
				if err := f.decode(kv); err != nil {
					return err
				}
			}
		}
		if !found {
			return gone
		}
	}
	for _, ev := range m.Events {
		if string(ev.Kv.Key) != f.key {
			continue
		}
		if ev.Type == mvccpb.Event_DELETE {
			return gone
		}
		if err := f.decode(ev.Kv); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) decode(kv *mvccpb.KeyValue) error {
	r, err := run.Decode(f.Runs.Keys, kv)
	if err != nil {
		return store.Problem("the run can't be read", err)
	}
	f.now = r
	return nil
}

// lookUp reads the position of a queued run, or the progress of the steps of a run in
// progress. It ignores errors: it is called again.
func (f *follower) lookUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	if f.now != nil && f.now.Status == run.Running && f.now.Steps > 0 {
		if text, err := stepsLine(ctx, f.Reader, f.now.ID, f.progress.line); err == nil {
			f.steps = text
		}
		return
	}
	f.place = ""
	if f.now == nil || f.now.Status != run.Queued {
		return
	}
	if all, err := f.Runs.Candidates(ctx); err == nil && len(all) == 0 {
		f.place = inspect.NoLeader
		return
	}
	all, err := f.Runs.All(ctx)
	if err != nil {
		return
	}
	queue := slices.DeleteFunc(all.Queue(), (*run.Run).Deferred)
	for i, r := range queue {
		if r.ID == f.now.ID {
			f.place = "position " + strconv.Itoa(i+1) + " of " + strconv.Itoa(len(queue))
		}
	}
}

// progressText describes a run that has not ended. Place is its position in the queue, if
// that is known.
func progressText(r *run.Run, place string) string {
	if r.Status != run.Queued {
		record := inspect.RunOf(r)
		return record.StatusText()
	}
	text := "queued"
	if place != "" {
		text += ", " + place
	}
	// Without the remaining time, which changes each second.
	if b := r.BlockAt(time.Time{}); b != nil {
		text += ": " + b.Text
	}
	return text
}

// statusLine says in a line how a run goes, or how it ended.
func statusLine(r *run.Run) string {
	if r.Status.Ended() {
		return endText(r)
	}
	return progressText(r, "")
}
