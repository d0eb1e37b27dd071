package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/text"
)

// majorityCheck is how often a server whose etcd is starting checks which other members answer.
const majorityCheck = time.Second

// Majority checks, until ctx ends, which of the other members of the cluster of this server answer it, and
// passes on what its etcd waits for: etcd begins to serve when a majority runs.
func (f *Founding) Majority(ctx context.Context, others []Member) {
	tick := time.NewTicker(majorityCheck)
	defer tick.Stop()
	logged := time.Now()
	for {
		silent := f.silent(ctx, others)
		if ctx.Err() != nil {
			return
		}
		what := awaited(len(others)+1, silent)
		f.wait(what)
		if now := time.Now(); now.Sub(logged) >= foundingRemind {
			logged = now
			f.Log.Info(what)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// silent returns the members that do not answer, with the reasons.
func (f *Founding) silent(ctx context.Context, members []Member) []string {
	ctx, cancel := context.WithTimeout(ctx, foundingTimeout)
	defer cancel()
	failed := make([]chan error, len(members))
	for i, m := range members {
		failed[i] = make(chan error, 1)
		go func() {
			_, err := f.listed(ctx, m)
			failed[i] <- err
		}()
	}
	var all []string
	for i, m := range members {
		if err := <-failed[i]; err != nil {
			all = append(all, fmt.Sprintf("%s at %s (%s)", m.Name, m.PeerURL, brief(err)))
		}
	}
	return all
}

// awaited says what etcd waits for before it serves, if some of its members do not answer.
func awaited(members int, silent []string) string {
	majority := members/2 + 1
	if members-len(silent) >= majority {
		return fmt.Sprintf("etcd waits for a leader: %d of its %s run, and elect one", members-len(silent), text.Count(members, "member"))
	}
	return fmt.Sprintf("etcd waits until %d of its %s run. These do not answer: %s", majority, text.Count(members, "member"), strings.Join(silent, ", "))
}
