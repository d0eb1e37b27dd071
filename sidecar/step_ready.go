package sidecar

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// readyFor lists what executors over HTTP can take of a queue, in order.
func (x *executors) readyFor(ctx context.Context, queue string, most int) ([]*step.Published, []error, error) {
	found, err := store.ReadAll(ctx, x.steps.Backend, x.steps.Keys.Ready(queue))
	if err != nil {
		return nil, nil, store.Problem("the queue could not be read", err)
	}
	var all []*step.Published
	var bad []error
	for _, kv := range found.KVs {
		p, err := step.DecodeReady(x.steps.Keys, kv)
		switch {
		case err != nil:
			bad = append(bad, err)
		case p.External:
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *step.Published) int { return strings.Compare(a.Order, b.Order) })
	return all[:min(len(all), most)], bad, nil
}

// awaitReady is readyFor that waits until there is something, for a while.
func (x *executors) awaitReady(ctx context.Context, queue string, most int, wait time.Duration) ([]*step.Published, []error, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	feed := store.NewFeed(x.steps.Backend, x.steps.Keys.Ready(queue), x.log, func() {})
	go func() { _ = feed.Run(waiting) }()
	defer func() {
		cancel()
		for range feed.Messages() { // it ends with its context
		}
	}()
	for {
		select {
		case m, ok := <-feed.Messages():
			switch {
			case !ok:
				return nil, nil, context.Cause(ctx)
			case !x.brings(m):
				continue
			}
			if all, bad, err := x.readyFor(ctx, queue, most); len(all) > 0 || err != nil {
				return all, bad, err
			}
		case <-waiting.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// brings tells whether a message brings something that executors can take.
func (x *executors) brings(m store.FeedMessage) bool {
	is := func(kv *mvccpb.KeyValue) bool {
		p, err := step.DecodeReady(x.steps.Keys, kv)
		return err == nil && p.External
	}
	return m.Snapshot != nil && slices.ContainsFunc(m.Snapshot.KVs, is) ||
		slices.ContainsFunc(m.Events, func(e *mvccpb.Event) bool { return e.Type == mvccpb.Event_PUT && is(e.Kv) })
}
