package executor

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// Ready lists at most so many of the step instances of a queue that executors can take, in
// order, and the errors of those that can't be read.
func Ready(ctx context.Context, steps step.Store, queue string, most int) ([]*step.Published, []error, error) {
	found, err := store.ReadAll(ctx, steps.Backend, steps.Keys.Ready(queue))
	if err != nil {
		return nil, nil, store.Problem("the queue could not be read", err)
	}
	var all []*step.Published
	var bad []error
	for _, kv := range found.KVs {
		p, err := step.DecodeReady(steps.Keys, kv)
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

// AwaitReady is [Ready] that waits until there is something to take, or that time has passed.
func AwaitReady(ctx context.Context, steps step.Store, log hclog.Logger, queue string, most int, wait time.Duration) ([]*step.Published, []error, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	feed := store.NewFeed(steps.Backend, steps.Keys.Ready(queue), log, func() {})
	go func() { _ = feed.Run(waiting) }()
	defer func() {
		cancel()
		for range feed.Messages() { // it ends with its context
		}
	}()
	external := func(kv *mvccpb.KeyValue) bool {
		p, err := step.DecodeReady(steps.Keys, kv)
		return err == nil && p.External
	}
	for {
		select {
		case m, ok := <-feed.Messages():
			switch {
			case !ok:
				return nil, nil, context.Cause(ctx)
			case m.Snapshot != nil && slices.ContainsFunc(m.Snapshot.KVs, external):
			case slices.ContainsFunc(m.Events, func(e *mvccpb.Event) bool { return e.Type == mvccpb.Event_PUT && external(e.Kv) }):
			default:
				continue
			}
			if all, bad, err := Ready(ctx, steps, queue, most); len(all) > 0 || err != nil {
				return all, bad, err
			}
		case <-waiting.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}
