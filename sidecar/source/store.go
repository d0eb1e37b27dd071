package source

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Store is what others than the source itself see of sources, and ask of them. Its
// errors are problems.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
}

// Overview is what is known of a source.
type Overview struct {
	Name string
	// Candidates are who stands to run it, the one that looks first.
	Candidates []election.Candidate
	// Last is the last look; nil before there was any.
	Last *Look
	// Seen is how many items are remembered.
	Seen int
	// Bad are values of it that can't be read: each names its key.
	Bad []error
}

// All returns all sources, by name.
func (s Store) All(ctx context.Context) ([]Overview, error) {
	all := []Overview{}
	// From one name to the next: what a source has seen can be a lot.
	for from := s.Keys.Sources(); ; {
		resp, err := s.Backend.Range(ctx, &pb.RangeRequest{
			Key: []byte(from), RangeEnd: store.RangeEnd(s.Keys.Sources()), Limit: 1, KeysOnly: true,
		})
		if err != nil {
			return nil, store.Problem("the sources could not be read", err)
		}
		if len(resp.Kvs) == 0 {
			return all, nil
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(string(resp.Kvs[0].Key), s.Keys.Sources()), "/")
		o, err := s.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
		from = string(store.RangeEnd(s.Keys.Source(name)))
	}
}

// Get returns what is known of one source, which may be nothing.
func (s Store) Get(ctx context.Context, name string) (Overview, error) {
	const what = "the source could not be read"
	o := Overview{Name: name}
	candidates, err := election.List(ctx, s.Backend, s.Keys.SourceCandidates(name))
	if err != nil {
		return o, store.Problem(what, err)
	}
	for _, kv := range candidates {
		c, err := election.Decode(s.Keys.SourceCandidates(name), kv)
		if err != nil {
			o.Bad = append(o.Bad, err)
		}
		if c.Term > 0 {
			o.Candidates = append(o.Candidates, c)
		}
	}
	look, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.SourcePoll(name))})
	if err != nil {
		return o, store.Problem(what, err)
	}
	for _, kv := range look.Kvs {
		l, err := decodeLook(string(kv.Key), kv.Value)
		if err != nil {
			o.Bad = append(o.Bad, err)
			continue
		}
		o.Last = &l
	}
	seen := s.Keys.DedupRecords(name)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(seen), RangeEnd: store.RangeEnd(seen), CountOnly: true})
	if err != nil {
		return o, store.Problem(what, err)
	}
	o.Seen = int(resp.Count)
	return o, nil
}

// known tells whether anything is known of a source.
func (o *Overview) known() bool {
	return len(o.Candidates) > 0 || o.Last != nil || o.Seen > 0 || len(o.Bad) > 0
}

// Find is [Store.Get] of a source that there is.
func (s Store) Find(ctx context.Context, name string) (Overview, error) {
	if err := ValidateName(name); err != nil {
		return Overview{}, err
	}
	o, err := s.Get(ctx, name)
	if err == nil && !o.known() {
		err = problem.New(problem.NotFound, "there is no source %q: 'berth source list' shows what there is", name)
	}
	return o, err
}

// Wake asks whoever runs a source to look at once, or once more if a look is under way.
// It returns the revision of the wish. If nobody runs the source, who looks at once when
// it does, that is a Precondition problem.
func (s Store) Wake(ctx context.Context, name string) (int64, error) {
	if err := ValidateName(name); err != nil {
		return 0, err
	}
	return store.Change(ctx, "the source was not woken", func(ctx context.Context) (int64, error) {
		put := store.Put(s.Keys.SourceWake(name), wish{stamp(time.Now())}.encode(), 0)
		rev, err := store.Commit(ctx, s.Backend, []*pb.Compare{s.somebody(name)}, put)
		if !errors.Is(err, store.ErrChanged) {
			return rev, err
		}
		if _, err := s.Find(ctx, name); err != nil {
			return 0, store.Stop(err)
		}
		return 0, store.Stop(problem.New(problem.Precondition, "nobody runs source %q: 'berth source run -f FILE' does, and looks at once", name))
	})
}

// somebody holds if anybody stands to run a source: of a range without keys nothing is
// greater than zero.
func (s Store) somebody(name string) *pb.Compare {
	c := store.Present(s.Keys.SourceCandidates(name))
	c.RangeEnd = store.RangeEnd(s.Keys.SourceCandidates(name))
	return c
}

// Await waits for a look that had heard of a wish when it began.
func (s Store) Await(ctx context.Context, name string, wish int64) (Look, error) {
	ctx, cancel := context.WithCancel(ctx)
	key := s.Keys.SourcePoll(name)
	feed := store.NewFeed(s.Backend, key, hclog.NewNullLogger(), func() {})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = feed.Run(ctx) // it is ctx that ends it
	}()
	defer func() { cancel(); <-done }()
	for m := range feed.Messages() {
		for _, kv := range puts(m) {
			if string(kv.Key) != key {
				continue
			}
			l, err := decodeLook(key, kv.Value)
			switch {
			case err != nil:
				return Look{}, store.Problem("the look of the source can't be read", err)
			case l.Wake >= wish:
				return l, nil
			}
		}
	}
	return Look{}, context.Cause(ctx)
}

// puts are the keys of a message that were put.
func puts(m store.FeedMessage) []*mvccpb.KeyValue {
	var all []*mvccpb.KeyValue
	if m.Snapshot != nil {
		all = append(all, m.Snapshot.KVs...)
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_PUT {
			all = append(all, ev.Kv)
		}
	}
	return all
}

// Delete forgets all of a source that nobody runs, and what it has seen.
func (s Store) Delete(ctx context.Context, name string) error {
	if _, err := s.Find(ctx, name); err != nil {
		return err
	}
	_, err := store.Change(ctx, "the source was not deleted", func(ctx context.Context) (int64, error) {
		nobody := []*pb.Compare{store.NonePutSince(s.Keys.SourceCandidates(name), 0)}
		rev, err := store.Commit(ctx, s.Backend, nobody, store.DeleteAll(s.Keys.Source(name)))
		if errors.Is(err, store.ErrChanged) {
			err = store.Stop(problem.New(problem.Precondition, "source %q is run by somebody ('berth source list'): stop that first", name))
		}
		return rev, err
	})
	return err
}
