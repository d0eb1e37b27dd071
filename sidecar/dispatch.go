package sidecar

import (
	"context"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/inspect"
)

const (
	// dispatchAge is how old the dispatcher that /readyz shows can be: any number of probes read etcd once in that time.
	dispatchAge = time.Second
	// vacantTime is for how long nobody dispatches before /readyz warns of it: by then each instance with waiting claims has
	// tried to, and serves its own.
	vacantTime = 5 * time.Second
)

// dispatchView reads who dispatches, for all probes.
type dispatchView struct {
	reader *inspect.Reader

	mu     sync.Mutex // guards what follows, and is held while it is read
	at     time.Time  // when last and err were read
	last   inspect.Dispatch
	err    error
	vacant time.Time // since when claims wait and nobody dispatches; zero if that is not so
}

// read returns who dispatches, as it was at most [dispatchAge] ago, and a warning if nobody has for some time.
func (v *dispatchView) read(ctx context.Context) (by *inspect.Dispatcher, warning string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.at) > dispatchAge {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
		defer cancel()
		v.last, v.err = v.reader.Dispatch(ctx)
		v.at = time.Now()
		if v.last.Warning() == "" {
			v.vacant = time.Time{}
		} else if v.vacant.IsZero() {
			v.vacant = v.at
		}
	}
	switch {
	case v.err != nil:
		return nil, v.err.Error()
	case !v.vacant.IsZero() && time.Since(v.vacant) >= vacantTime:
		return nil, v.last.Warning()
	}
	return v.last.Dispatcher, ""
}
