package executor

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// readyPage is how many entries of a queue are read together at most.
const readyPage = 1000

// Found are step instances of a queue that executors can take, in order.
type Found struct {
	Items []*step.Published
	// Bad are the errors of those that can't be read.
	Bad []error
	// revision is the one that the queue was read at.
	revision int64
}

// Ready lists at most so many of the step instances of a queue that executors can take. It
// reads no more of the queue than it needs for that: what workers take is in the queue, too.
func Ready(ctx context.Context, steps step.Store, queue string, most int) (found Found, err error) {
	pages := store.Pages{Prefix: steps.Keys.Ready(queue), First: min(most, readyPage), Most: readyPage}
	found.revision, err = pages.Each(ctx, steps.Backend, func(page store.Page) bool {
		for _, kv := range page.KVs {
			p, err := step.DecodeReady(steps.Keys, kv)
			switch {
			case err != nil:
				found.Bad = append(found.Bad, err)
			case p.External:
				found.Items = append(found.Items, p)
			}
			if len(found.Items) == most {
				return false
			}
		}
		return true
	})
	if err != nil {
		return Found{}, store.Problem("the queue could not be read", err)
	}
	return found, nil
}

// AwaitReady waits, after ready was called and has found nothing, until it finds something,
// or that time has passed. It calls ready again whenever there may be something.
func AwaitReady(ctx context.Context, steps step.Store, log hclog.Logger, queue string, before Found, wait time.Duration, ready func(context.Context) (Found, error)) (Found, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	feed := store.NewChanges(steps.Backend, steps.Keys.Ready(queue), before.revision, log)
	go func() { _ = feed.Run(waiting) }()
	defer func() {
		cancel()
		for range feed.Messages() { // it ends with its context
		}
	}()
	for {
		select {
		case m, ok := <-feed.Messages():
			if !ok {
				return Found{}, context.Cause(ctx)
			}
			if !mayHaveReady(steps.Keys, m) {
				continue
			}
			if found, err := ready(ctx); len(found.Items) > 0 || err != nil {
				return found, err
			}
		case <-waiting.Done():
			return Found{}, context.Cause(ctx)
		}
	}
}

// mayHaveReady reports whether a message says that there is something to take, or that this
// is not known.
func mayHaveReady(keys store.Keys, m store.FeedMessage) bool {
	if m.Snapshot != nil {
		return true
	}
	for _, e := range m.Events {
		if e.Type != mvccpb.Event_PUT {
			continue
		}
		if p, err := step.DecodeReady(keys, e.Kv); err == nil && p.External {
			return true
		}
	}
	return false
}
