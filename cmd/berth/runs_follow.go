package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// logsInterval is how often running instances are read, and whether all has ended: less
	// often if that takes long.
	logsInterval = time.Second
	// logsSilence is how long etcd may not answer before everything is read again. Each poll
	// requests an answer.
	logsSilence = 10 * time.Second
	// logsPause is how long to wait before that.
	logsPause = time.Second
)

// logFollower shows output as it comes, until all that is asked for has ended.
type logFollower struct {
	*inspect.Logs
	c   *cli.Context
	out *logTail
	// reported is the end of the output that was printed, by instance.
	reported map[store.StepID]reportedLog
	// looked is when running instances were last read, and at are those. If crowd is not 0,
	// it is how many run, more than are read.
	looked time.Time
	at     []store.StepID
	crowd  int
	// blind is set if workers can't be reached, and quiet if it was reported why there is no
	// output.
	blind, quiet bool
	bad          []error
}

// reportedLog is the end of the printed output of an attempt.
type reportedLog struct {
	fence store.Fence
	end   int64
	ended bool
}

func followLogs(c *cli.Context, l *inspect.Logs, p *printer) error {
	f := &logFollower{
		Logs: l, c: c, reported: map[store.StepID]reportedLog{},
		out: &logTail{printer: p, clean: isatty.IsTerminal(os.Stdout.Fd())},
	}
	if l.Overview.Run.Steps == 0 {
		return sayWhyNone(c, l)
	}
	away := false
	for {
		err := f.follow(c.Context)
		switch {
		case err == nil:
			f.out.end()
			return errors.Join(f.sayEnd(), unreadableLogs(f.bad))
		case problem.CodeOf(err) != problem.EtcdUnavailable:
			return err
		case !away:
			say(c, "etcd does not answer, waiting for it")
		}
		away = true
		if err := pause(c.Context, logsPause); err != nil {
			return err
		}
	}
}

// follow prints the output that exists and that comes, until all has ended. If etcd does
// not answer, its error is EtcdUnavailable, and it is called again.
func (f *logFollower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.poll(ctx, true); err != nil {
		return err
	}
	known, err := f.Each(ctx, func(l *inspect.Logged) error {
		if l.Bad != nil {
			f.bad = append(f.bad, l.Bad)
			return nil
		}
		return f.report(ctx, l.StepID, l.Log)
	})
	if err != nil {
		return err
	}
	watch := f.Runs.Backend.Watch(ctx, store.Prefix(f.Prefix()), known+1)
	tick := time.NewTimer(0)
	defer tick.Stop()
	silence := time.NewTimer(logsSilence)
	defer silence.Stop()
	over := int64(0) // the revision at which all had ended, if it has
	for over == 0 || known < over {
		select {
		case m, ok := <-watch.Messages():
			if !ok || m.Err != nil {
				return problem.New(problem.EtcdUnavailable, "the output can't be followed: %w", errors.Join(store.ErrUnavailable, m.Err))
			}
			silence.Reset(logsSilence)
			known = max(known, m.Revision)
			if err := f.take(ctx, m.Events); err != nil {
				return err
			}
		case <-tick.C:
			begun := time.Now()
			if over == 0 {
				if over, err = f.tick(ctx); err != nil {
					return err
				}
			}
			watch.RequestProgress()
			tick.Reset(max(logsInterval, watchShare*time.Since(begun)))
		case <-silence.C:
			watch.Abandon()
			return problem.New(problem.EtcdUnavailable, "the output can't be followed: %w", store.ErrUnavailable)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// tick reads whether all has ended, and otherwise which instances run.
func (f *logFollower) tick(ctx context.Context) (over int64, err error) {
	if over, err = f.ended(ctx); err != nil || over > 0 {
		return over, err
	}
	if err := f.poll(ctx, false); err != nil {
		return 0, err
	}
	if len(f.reported) == 0 && len(f.at) == 0 && !f.quiet {
		f.quiet = true
		return 0, sayWhyNone(f.c, f.Logs)
	}
	return 0, nil
}

// poll asks workers for the output of the instances that run: first of those of the last
// poll, then of others.
func (f *logFollower) poll(ctx context.Context, fresh bool) error {
	if f.blind {
		return nil
	}
	all, err := f.Running(ctx)
	if err != nil {
		return err
	}
	at, more := lookAt(f.at, all)
	if more > 0 && f.crowd == 0 {
		say(f.c, "of %d instances that run %d are followed at a time: of the others the output comes when they have ended", len(all), step.MaxFollowed)
	}
	f.crowd = more
	due := fresh || time.Since(f.looked) >= step.FollowAgain
	if len(at) > 0 && (due || !slices.Equal(at, f.at)) {
		if _, err := f.Steps.Follow(ctx, fresh, at...); problem.CodeOf(err) == problem.EtcdUnavailable {
			return err
		} else if err != nil {
			f.blind = true
			say(f.c, "output is shown when its attempt has ended: %v", err)
		}
		f.looked = time.Now()
	}
	f.at = at
	return nil
}

// lookAt chooses the running instances to follow: first those of the last poll, then
// others, up to the limit.
func lookAt(before, running []store.StepID) (at []store.StepID, more int) {
	for _, id := range before {
		if slices.Contains(running, id) {
			at = append(at, id)
		}
	}
	for _, id := range running {
		if !slices.Contains(at, id) && len(at) < step.MaxFollowed {
			at = append(at, id)
		}
	}
	return at, len(running) - len(at)
}

// ended returns a revision at which all that is asked for had ended, 0 if it has not.
func (f *logFollower) ended(ctx context.Context) (revision int64, err error) {
	if f.Want.Step == "" {
		r, err := f.Runs.Get(ctx, f.Run)
		if err != nil && problem.CodeOf(err) != problem.RunNotFound || err == nil && !r.Status.Ended() {
			return 0, err
		}
	} else if over, err := f.stepEnded(ctx); err != nil || !over {
		return 0, err
	}
	// When a run ends, what runs of it is stopped: what that writes then comes as well.
	for id, l := range f.reported {
		if l.ended {
			continue
		}
		i, err := f.Steps.Get(ctx, id)
		if err == nil && i.Status == step.Running && i.Fence() == l.fence || err != nil && problem.CodeOf(err) != problem.StepNotFound {
			return 0, err
		}
	}
	// All output that was written before is printed before this.
	resp, err := f.Runs.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(f.Runs.Keys.Run(f.Run)), KeysOnly: true})
	if err != nil {
		return 0, store.Problem("the run could not be read", err)
	}
	return resp.Header.Revision, nil
}

// stepEnded reports whether a step has ended, or one of its instances.
func (f *logFollower) stepEnded(ctx context.Context) (bool, error) {
	if f.Want.Index != step.Every {
		d, err := f.Steps.Detail(ctx, f.One())
		if problem.CodeOf(err) == problem.RunNotFound {
			return true, nil
		}
		return err == nil && d.Status.Ended(), err
	}
	o, err := f.Steps.Overview(ctx, f.Run)
	if problem.CodeOf(err) == problem.RunNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(o.Steps, func(s step.Summary) bool { return s.Shape.Name == f.Want.Step })
	return at < 0 || !o.Steps[at].EndedAt.IsZero() || o.Run.Status.Ended(), nil
}

// take prints the output in the events of a watch.
func (f *logFollower) take(ctx context.Context, events []*mvccpb.Event) error {
	for _, ev := range events {
		if ev.Type != mvccpb.Event_PUT {
			continue
		}
		id, err := f.IDOf(ev.Kv.Key)
		if err != nil {
			return err
		}
		if f.Place(id) < 0 {
			continue
		}
		l, err := step.DecodeLog(ev.Kv)
		if err != nil {
			f.bad = append(f.bad, err)
			continue
		}
		if err := f.report(ctx, id, l); err != nil {
			return err
		}
	}
	return nil
}

// report prints the new part of an output.
func (f *logFollower) report(ctx context.Context, id store.StepID, l *step.Log) error {
	before := f.reported[id]
	switch {
	case l.Fence < before.fence: // it was read before what was printed
		return nil
	case l.Fence > before.fence:
		before = reportedLog{fence: l.Fence}
	}
	text, missing := l.Since(before.end)
	f.reported[id] = reportedLog{l.Fence, max(before.end, l.End()), before.ended || l.Ended}
	ends := l.Ended && !before.ended
	if len(text) == 0 && !ends {
		return nil
	}
	part := &logPart{id: id, log: l, text: text, missing: missing, joined: before.end == 0, ends: ends}
	if ends {
		// How it has ended is printed as well, if that is still known.
		i, err := f.Steps.Get(ctx, id)
		if problem.CodeOf(err) == problem.EtcdUnavailable {
			return err
		}
		if err == nil {
			part.instance = i
		}
	}
	return f.out.write(part)
}

// sayEnd reports how the followed instances have ended.
func (f *logFollower) sayEnd() error {
	o, err := f.Steps.Overview(f.c.Context, f.Run)
	switch {
	case problem.CodeOf(err) == problem.RunNotFound:
		say(f.c, "there is no run %q any more", f.Run)
		return nil
	case err != nil:
		return err
	case f.Want.Step == "":
		say(f.c, "%s", endText(o.Run))
		return nil
	case f.Want.Index == step.Every:
		steps, err := inspect.StepsNamed(o, f.Want)
		if err == nil {
			say(f.c, "step %s of run %s: %s", f.Want, f.Run, countsText(steps[0].Counts))
		}
		return err
	}
	d, err := f.Steps.Detail(f.c.Context, f.One())
	if err == nil {
		say(f.c, "%s of run %s: %s", f.Want, f.Run, instanceText(&d.Instance, time.Now()))
	}
	return err
}

// logPart is a part of an output.
type logPart struct {
	id   store.StepID
	log  *step.Log
	text []byte
	// missing is how many bytes are left out before it; joined is set if it is the first
	// of its attempt.
	missing int64
	joined  bool
	// ends is set if nothing follows. Instance is its state then, if that is
	// known.
	ends     bool
	instance *step.Instance
}

// loggedPart is a part of an output, in JSON.
type loggedPart struct {
	RunID   string `json:"run_id"`
	Step    string `json:"step"`
	Index   int    `json:"index"`
	Attempt int    `json:"attempt"`
	// LeftOut is how many bytes of the attempt are left out before it.
	LeftOut int64  `json:"left_out"`
	Output  string `json:"output"`
	// Ended is set for the last part of an attempt, and Status is that of the instance
	// then.
	Ended  bool   `json:"ended"`
	Status string `json:"status,omitempty"`
}

// logTail writes parts of outputs as they come.
type logTail struct {
	*printer
	clean bool // it is a terminal

	// last is whose part came last, and of which attempt; its last line may not be whole.
	last    store.StepID
	fence   store.Fence
	midline bool
	// rest is the beginning of a character, or of the end of a line, whose rest may be yet
	// to come; of last.
	rest []byte
}

func (t *logTail) write(p *logPart) error {
	var b bytes.Buffer
	var err error
	switch t.format {
	case "json":
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err = enc.Encode(p.record())
	case "yaml":
		b.WriteString("---\n")
		err = writeYAML(&b, p.record())
	default:
		t.add(&b, p)
	}
	if err != nil {
		return err
	}
	_, err = t.out.Write(b.Bytes())
	return err
}

func (p *logPart) record() loggedPart {
	r := loggedPart{
		RunID: p.id.Run, Step: p.id.Step, Index: p.id.Index, Attempt: p.log.Attempt,
		LeftOut: p.missing, Output: string(p.text), Ended: p.ends,
	}
	if p.instance != nil {
		r.Status = string(p.instance.Status)
	}
	return r
}

// add adds a part for people: under a head if the part before was of another instance.
func (t *logTail) add(b *bytes.Buffer, p *logPart) {
	if t.last != p.id || t.fence != p.log.Fence {
		t.breakLine(b)
		if t.fence != 0 {
			b.WriteByte('\n')
		}
		head := p.id.Text()
		if p.log.Attempt > 1 {
			head += fmt.Sprintf(", attempt %d", p.log.Attempt)
		}
		t.say(b, head)
		t.last, t.fence = p.id, p.log.Fence
	}
	switch {
	case p.missing > 0 && p.joined:
		t.say(b, p.log.LeftOut())
	case p.missing > 0:
		t.say(b, step.BytesText(p.missing)+" are left out here")
	}
	text := p.text
	if t.clean {
		text = t.cleanPart(text)
	}
	if len(text) > 0 {
		b.Write(text)
		t.midline = text[len(text)-1] != '\n'
	}
	if p.ends {
		end := "it has ended"
		if p.instance != nil {
			end = firstLine(instanceText(p.instance, t.now))
		}
		t.say(b, p.id.Text()+": "+end)
	}
}

// say adds a line of berth's own.
func (t *logTail) say(b *bytes.Buffer, text string) {
	t.breakLine(b)
	fmt.Fprintf(b, "==> %s <==\n", clean(text))
}

// breakLine ends a line that is not whole.
func (t *logTail) breakLine(b *bytes.Buffer) {
	if len(t.rest) > 0 {
		b.WriteString(cleanLines(string(t.rest)))
		t.midline, t.rest = true, nil
	}
	if t.midline {
		b.WriteByte('\n')
		t.midline = false
	}
}

// cleanPart is [cleanLines] for a part: a character that is not whole waits for its rest.
func (t *logTail) cleanPart(text []byte) []byte {
	text = append(t.rest, text...)
	whole := len(text)
	if bytes.HasSuffix(text, []byte("\r")) { // the line may end so
		whole--
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if at := len(text) - n; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	t.rest = bytes.Clone(text[whole:])
	return []byte(cleanLines(string(text[:whole])))
}

// end ends the last line.
func (t *logTail) end() {
	var b bytes.Buffer
	if t.format == "table" {
		t.breakLine(&b)
	}
	_, _ = t.out.Write(b.Bytes()) // an error was reported with the output before
}
