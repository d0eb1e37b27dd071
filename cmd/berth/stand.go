package main

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/internal/store"
)

// standing is a candidate for the coordinator's part that runs in this process. A
// nil one is none.
type standing struct {
	candidate *coordinator.Coordinator
	cancel    context.CancelFunc
	// ended is closed when it stands no more, and err says why, unless it was asked
	// to step down.
	ended chan struct{}
	err   error
}

// stand runs a candidate. It has connections of its own, and waits for an etcd that
// is not there yet.
func stand(s config.Settings, log hclog.Logger, reg prometheus.Registerer) (*standing, error) {
	backend, err := newBackend(s, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	st := &standing{
		cancel: cancel, ended: make(chan struct{}),
		candidate: coordinator.New(coordinator.Config{
			Backend: backend, Keys: store.NewKeys(s.Prefix), Host: hostName(s), Version: version(),
			TickInterval: s.TickInterval, StartTimeout: s.StartTimeout, Retention: s.RunRetention,
			CompactInterval: none(s.CompactInterval),
			Logger:          log, Registerer: reg,
		}),
	}
	go func() {
		defer close(st.ended)
		err := st.candidate.Run(ctx)
		if ctx.Err() != nil {
			err = nil // it was asked to
		}
		st.err = errors.Join(err, backend.Close())
	}()
	return st, nil
}

// ready is closed when it is seen among the hosts.
func (st *standing) ready() <-chan struct{} { return st.candidate.Ready() }

// failed is closed when it can't stand any more.
func (st *standing) failed() <-chan struct{} {
	if st == nil {
		return nil
	}
	return st.ended
}

// stepDown ends the candidate, so that the next one leads at once, and returns why
// it had ended before, if it had. It may be called again.
func (st *standing) stepDown() error {
	if st == nil {
		return nil
	}
	st.cancel()
	<-st.ended
	return st.err
}
