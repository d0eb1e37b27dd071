package source

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

const (
	// logMost bounds how many refused items one poll logs.
	logMost = 10
	// maxShown bounds a text of a stored poll, in bytes.
	maxShown = 1 << 10
	// maxPause bounds the pause after polls that failed, unless the interval is longer.
	maxPause = 5 * time.Minute
	// storeEvery is how old the stored poll may become while nothing else changes.
	storeEvery = 10 * time.Second
)

// Poll is the result of one poll of a source.
type Poll struct {
	// By is the host that polled, and Interval how often the source polls.
	By       string        `json:"by"`
	Interval time.Duration `json:"interval_ns"`
	At       time.Time     `json:"at"`
	Took     time.Duration `json:"took_ns"`
	// Listed is the number of items, including those that were refused. Submitted is the
	// number of those that became runs.
	Listed    int `json:"listed"`
	Refused   int `json:"refused,omitempty"`
	Submitted int `json:"submitted"`
	// Refusal is why the first of those was refused.
	Refusal string `json:"refusal,omitempty"`
	// Error is why the poll failed. Failures is how many have failed in a row.
	Error    string `json:"error,omitempty"`
	Failures int    `json:"failures,omitempty"`
	// LastGood is when the last poll began that did not fail.
	LastGood time.Time `json:"last_good,omitzero"`
	// Wake is the revision of the last request to poll at once that it fulfills.
	Wake int64 `json:"wake,omitempty"`
}

type pollValue struct {
	store.V
	Poll
}

func (p Poll) encode() []byte { return store.Encode(pollValue{store.Now, p}) }

// decodePoll reads a poll. Its error is a [*store.CorruptError].
func decodePoll(key string, data []byte) (Poll, error) {
	var v pollValue
	err := store.Decode(key, data, &v)
	return v.Poll, err
}

// differs reports whether the poll is to be stored after the one that is stored: if more
// than times differ, or that one is too old.
func (p Poll) differs(stored Poll) bool {
	if p.At.Sub(stored.At) >= storeEvery || p.At.Before(stored.At) {
		return true
	}
	stored.At, stored.Took, stored.LastGood = p.At, p.Took, p.LastGood
	return p != stored
}

// wake is a request to poll at once.
type wake struct {
	store.V
	At time.Time `json:"at"`
}

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// pause returns how long the next poll waits: the interval, also after one failure, and
// twice as long after each further failure.
func pause(interval time.Duration, failures int) time.Duration {
	most := max(interval, maxPause)
	for range failures - 1 {
		if interval = 2 * interval; interval >= most {
			return most
		}
	}
	return interval
}

// term is a term of this process as the leader.
type term struct {
	*Source
	held *pb.Compare // holds during the term

	records dedupRecords // nil until they are read
	last    Poll
	shown   Poll            // the stored one
	known   map[string]bool // the refusals of the last poll
}

// run polls again and again until the term has ended.
func (t *term) run(ctx context.Context) error {
	for {
		wake := t.requested.Load()
		err := t.poll(ctx, wake)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, election.ErrDeposed) {
			return err
		}
		next := time.NewTimer(pause(t.cfg.Spec.Interval, t.last.Failures))
		for waiting := true; waiting; {
			select {
			case <-t.woken:
				waiting = t.requested.Load() <= wake
			case <-next.C:
				waiting = false
			case <-ctx.Done():
				next.Stop()
				return context.Cause(ctx)
			}
		}
		next.Stop()
	}
}

// poll lists the items, submits the new ones, and stores the result. Its error is why the
// poll has failed.
func (t *term) poll(ctx context.Context, wake int64) error {
	begun := time.Now()
	p := Poll{
		By: t.cfg.Host, Interval: t.cfg.Spec.Interval, At: stamp(begun), LastGood: t.last.LastGood, Wake: wake,
	}
	refused, err := t.submitNew(ctx, &p)
	if ctx.Err() != nil || errors.Is(err, election.ErrDeposed) {
		return err
	}
	p.Took = time.Since(begun).Truncate(time.Millisecond)
	p.Refused = len(refused)
	if len(refused) > 0 {
		p.Refusal = text.Cut(refused[0].String(), maxShown)
	}
	switch {
	case err != nil:
		p.Error, p.Failures = text.Cut(err.Error(), maxShown), t.last.Failures+1
		if p.Failures == 1 { // once in a row
			t.cfg.Logger.Warn("the poll failed, trying again", "error", err)
		}
	default:
		p.LastGood = p.At
		if t.last.Failures > 0 {
			t.cfg.Logger.Info("polls succeed again", "failed", t.last.Failures)
		}
	}
	t.logRefused(refused, err == nil)
	t.metrics.polled(p, time.Since(begun))
	t.last = p
	if !p.differs(t.shown) {
		return err
	}
	if _, failed := t.commit(ctx, "the poll could not be stored", store.Put(t.cfg.Keys.SourcePoll(t.cfg.Spec.Name), p.encode(), 0)); failed != nil {
		if err == nil { // else the log has an error already
			t.cfg.Logger.Debug("the result of the poll could not be stored", "error", failed)
		}
		if errors.Is(failed, election.ErrDeposed) {
			return failed
		}
		return err
	}
	t.shown = p
	return err
}

// submitNew lists the items, submits the new ones, and writes the records.
func (t *term) submitNew(ctx context.Context, p *Poll) ([]Refusal, error) {
	if err := t.remember(ctx); err != nil {
		return nil, err
	}
	output, err := t.cfg.List(ctx)
	if err != nil {
		return nil, err
	}
	items, refused, err := t.cfg.Spec.Decode(output)
	if err != nil {
		return nil, err
	}
	p.Listed = len(items) + len(refused)
	d := t.records.due(items, t.cfg.Spec.Forget, stamp(time.Now()))
	more, err := t.submitAll(ctx, d.submit, p)
	refused = append(refused, more...)
	if err != nil {
		return refused, err
	}
	if err := t.write(ctx, d.change); err != nil {
		return refused, err
	}
	return refused, t.forget(ctx, d.forget)
}

// submitAll submits items in their order, each as a run, and writes their records.
func (t *term) submitAll(ctx context.Context, items []Item, p *Poll) (refused []Refusal, err error) {
	if len(items) == 0 {
		return nil, nil
	}
	by, err := t.cfg.Submitter(ctx)
	if err != nil {
		return nil, err
	}
	done := dedupRecords{}
	flush := func() error {
		err := t.write(ctx, done)
		clear(done)
		return err
	}
	for _, it := range items {
		created, err := t.submit(ctx, by, it)
		switch code := problem.CodeOf(err); {
		case err == nil:
			done[it.ID] = dedupRecord{At: stamp(time.Now())}
		case ctx.Err() == nil && (code == problem.Invalid || code == problem.IDInUse):
			// Only this item is at fault.
			refused = append(refused, Refusal{it.Where, `"` + it.ID + `": ` + err.Error()})
		default:
			return refused, errors.Join(err, flush())
		}
		if created {
			p.Submitted++
		}
		if len(done) == dedupBatch {
			if err := flush(); err != nil {
				return refused, err
			}
		}
	}
	return refused, flush()
}

// submit submits the run of an item as an identity, if it does not exist.
func (t *term) submit(ctx context.Context, by access.Identity, it Item) (created bool, err error) {
	sub, err := t.cfg.Spec.submission(it)
	if err != nil {
		return false, err
	}
	steps := step.Store{Backend: t.cfg.Backend, Keys: t.cfg.Keys, Journal: t.runs.Journal, Group: &store.Group{}}
	_, created, err = steps.SubmitAs(ctx, by, t.runs, sub.id, sub.spec, sub.graph)
	if problem.CodeOf(err) == problem.IDInUse && t.isOurs(ctx, sub) {
		return false, nil
	}
	return created, err
}

// isOurs reports whether an existing run is that of the item, submitted when the source or
// the item had other contents.
func (t *term) isOurs(ctx context.Context, sub submission) bool {
	r, err := t.runs.Get(ctx, sub.id)
	return err == nil && r.Status != run.Storing &&
		r.Spec.Labels[LabelSource] == sub.spec.Labels[LabelSource] && r.Spec.Labels[LabelItem] == sub.spec.Labels[LabelItem]
}

// logRefused logs the items that were refused now and not by the poll before. A poll that
// failed may not have read the items.
func (t *term) logRefused(refused []Refusal, good bool) {
	if !good && len(refused) == 0 {
		return
	}
	now, fresh := make(map[string]bool, len(refused)), 0
	for _, r := range refused {
		now[r.Why] = true
		if t.known[r.Why] {
			continue
		}
		if fresh++; fresh <= logMost {
			t.cfg.Logger.Warn("an item is refused", "at", r.Where, "reason", r.Why)
		}
	}
	if fresh > logMost {
		t.cfg.Logger.Warn("more items are refused", "count", fresh-logMost)
	}
	t.known = now
}
