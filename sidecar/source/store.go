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

// Store reads sources from etcd, wakes and deletes them. Its errors are problems.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
}

// Overview is what etcd has of a source.
type Overview struct {
	Name string
	// Candidates are its processes, the leader first.
	Candidates []election.Candidate
	// Last is the last poll; nil before the first.
	Last *Poll
	// Known is the number of dedup records.
	Known int
	// Bad are the values that cannot be read: each names its key.
	Bad []error
}

// All returns all sources in the order of their names.
func (s Store) All(ctx context.Context) ([]Overview, error) {
	all := []Overview{}
	// From one name to the next: a source can have many dedup records.
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

// Get returns one source, without content if etcd has none.
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
	last, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.SourcePoll(name))})
	if err != nil {
		return o, store.Problem(what, err)
	}
	for _, kv := range last.Kvs {
		p, err := decodePoll(string(kv.Key), kv.Value)
		if err != nil {
			o.Bad = append(o.Bad, err)
			continue
		}
		o.Last = &p
	}
	records := s.Keys.DedupRecords(name)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(records), RangeEnd: store.RangeEnd(records), CountOnly: true})
	if err != nil {
		return o, store.Problem(what, err)
	}
	o.Known = int(resp.Count)
	return o, nil
}

// exists reports whether etcd has anything of the source.
func (o *Overview) exists() bool {
	return len(o.Candidates) > 0 || o.Last != nil || o.Known > 0 || len(o.Bad) > 0
}

// Find is [Store.Get] with a NotFound problem for a source that does not exist.
func (s Store) Find(ctx context.Context, name string) (Overview, error) {
	if err := ValidateName(name); err != nil {
		return Overview{}, err
	}
	o, err := s.Get(ctx, name)
	if err == nil && !o.exists() {
		err = problem.New(problem.NotFound, "there is no source %q: 'berth source list' lists the sources", name)
	}
	return o, err
}

// Wake requests that a source polls at once, or once more if a poll is under way. It
// returns the revision of the request. If no process runs the source, that is a
// Precondition problem: a source polls at once when it starts.
func (s Store) Wake(ctx context.Context, name string) (int64, error) {
	if err := ValidateName(name); err != nil {
		return 0, err
	}
	return store.Change(ctx, "the source was not woken", func(ctx context.Context) (int64, error) {
		put := store.Put(s.Keys.SourceWake(name), store.Encode(wake{store.Now, stamp(time.Now())}), 0)
		rev, err := store.Commit(ctx, s.Backend, []*pb.Compare{s.running(name)}, put)
		if !errors.Is(err, store.ErrChanged) {
			return rev, err
		}
		if _, err := s.Find(ctx, name); err != nil {
			return 0, store.Stop(err)
		}
		return 0, store.Stop(problem.New(problem.Precondition, "no process runs source %q: 'berth source run -f FILE' runs it, and polls at once", name))
	})
}

// running holds if a source has candidates: in a range without keys no revision is
// greater than zero.
func (s Store) running(name string) *pb.Compare {
	c := store.Present(s.Keys.SourceCandidates(name))
	c.RangeEnd = store.RangeEnd(s.Keys.SourceCandidates(name))
	return c
}

// Await waits for a poll that fulfills a request of [Store.Wake].
func (s Store) Await(ctx context.Context, name string, request int64) (Poll, error) {
	ctx, cancel := context.WithCancel(ctx)
	key := s.Keys.SourcePoll(name)
	feed := store.NewFeed(s.Backend, key, hclog.NewNullLogger(), func() {})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = feed.Run(ctx) // it ends with ctx
	}()
	defer func() { cancel(); <-done }()
	for m := range feed.Messages() {
		for _, kv := range puts(m) {
			if string(kv.Key) != key {
				continue
			}
			p, err := decodePoll(key, kv.Value)
			switch {
			case err != nil:
				return Poll{}, store.Problem("the poll of the source cannot be read", err)
			case p.Wake >= request:
				return p, nil
			}
		}
	}
	return Poll{}, context.Cause(ctx)
}

// puts returns the keys of a message that were put.
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

// Delete deletes a source that no process runs, with its dedup records.
func (s Store) Delete(ctx context.Context, name string) error {
	if _, err := s.Find(ctx, name); err != nil {
		return err
	}
	_, err := store.Change(ctx, "the source was not deleted", func(ctx context.Context) (int64, error) {
		stopped := []*pb.Compare{store.NonePutSince(s.Keys.SourceCandidates(name), 0)}
		rev, err := store.Commit(ctx, s.Backend, stopped, store.DeleteAll(s.Keys.Source(name)))
		if errors.Is(err, store.ErrChanged) {
			err = store.Stop(problem.New(problem.Precondition, "source %q is running ('berth source list' shows where): stop it first", name))
		}
		return rev, err
	})
	return err
}
