package sidecar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/executor"
	"github.com/berthhq/berth/sidecar/server"
)

const (
	// drainCheck is how often a drain checks whether claims are left.
	drainCheck = 50 * time.Millisecond
	// closeDrain is the least time for an instance to drain that has drained
	// already: it checks once.
	closeDrain = 10 * time.Millisecond
)

// live is the life of a server, once it answers:
//
//  1. etcd is reached. Meanwhile the processes are stopped in time that an earlier
//     server has bound claims to.
//  2. The claims and the runs that an earlier server left are taken over.
//  3. Claims are made and runs started, until a stop.
//  4. The stop, as its mode says.
func (s *Server) live(ctx context.Context, a *apiServer, web *server.Server) error {
	procs, err := proc.NewWatcher()
	if err != nil {
		return fmt.Errorf("sidecar: watch processes: %w", err)
	}
	kept := claims.Config{
		StateDir: s.cfg.Options.StateDir, Instance: s.cfg.Options.Instance,
		Log: s.cfg.Logger, Procs: procs, Metrics: a.metrics.claims,
	}
	before := claims.WatchOrphans(kept)
	client, mode, err := s.connect(ctx, a, web)
	if client == nil {
		before.Stop()
		return errors.Join(err, procs.Close())
	}
	hub := server.NewHub(source(client.Subscribe).relay, poolSource(client.SubscribePools).relay)
	kept.Notify = publish(hub)
	hs := claims.New(kept)
	session := a.newSession(client, hs, procs, hub)
	xs := session.executors
	looking, cancel := context.WithCancel(context.Background())
	var looks sync.WaitGroup
	looks.Go(func() { xs.Run(looking) })

	held, err := client.Held(context.WithoutCancel(ctx))
	if err != nil {
		mode = Leave
	} else {
		executed, others := executor.Split(held)
		hs.Resume(others)
		looks.Go(func() { hs.Run(looking) })
		before.TakenOver(others)
		looks.Go(func() { hs.RecordLeases(looking) })
		xs.Resume(client.AdoptedKeys(), executed)
		xs.Follow(looking, client.SubscribeRuns, &looks)
		a.session.Store(session)
		looks.Go(func() { a.pages.Run(looking) })
		s.log.Info("ready", keyClaims, len(held), keyRuns, xs.Count())
		if mode == 0 {
			mode, err = s.serving(ctx, client, web)
		}
	}
	a.stopping.Store(errStopping)
	a.waits.stop(errStopping)
	hub.Stop()
	err = errors.Join(err, s.end(mode, client, hs, xs, web, a))

	before.Stop()
	cancel()
	looks.Wait()
	a.waits.tasks.Wait() // the instance has ended, so they do
	hs.Leave()
	xs.Leave()
	return errors.Join(err, procs.Close())
}

// connect reaches etcd. There is no client if the server was stopped before, or
// can't go on.
func (s *Server) connect(ctx context.Context, a *apiServer, web *server.Server) (client *instance.Client, mode StopMode, err error) {
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	var task sync.WaitGroup
	task.Go(func() { client, err = s.open(opening, a) })
	done := make(chan struct{})
	go func() {
		task.Wait()
		close(done)
	}()
	var failed error
	select {
	case <-done:
	case mode = <-s.stops:
		cancel()
	case failed = <-web.Failed():
		mode = Leave
		cancel()
	}
	<-done
	switch {
	case client == nil && (mode != 0 || ctx.Err() != nil):
		err = failed // it was stopped before there was anything
	case failed != nil:
		err = failed
	}
	return client, mode, err
}

// serving waits for a stop.
func (s *Server) serving(ctx context.Context, client *instance.Client, web *server.Server) (StopMode, error) {
	select {
	case <-ctx.Done():
		return Drain, nil
	case mode := <-s.stops:
		return mode, nil
	case err := <-web.Failed():
		return Leave, err
	case <-client.Done():
		return Revoke, fmt.Errorf("sidecar: berth has ended on this host: %w", client.Err())
	}
}

// end ends the instance.
func (s *Server) end(mode StopMode, client *instance.Client, hs *claims.Holders, xs *executor.Executors, web *server.Server, a *apiServer) error {
	if mode == Drain {
		mode = s.drain(client, hs, xs)
	}
	s.log.Info("stopping", keyMode, mode.String(), keyClaims, hs.Count(), keyRuns, xs.Count())
	if mode == Leave {
		// What is being answered is answered while the instance still can.
		err := a.close(web)
		a.waits.await()
		hs.Leave()
		xs.Leave()
		return errors.Join(err, client.Leave())
	}
	if client.Err() != nil {
		s.stopHolders(hs, problem.Of(client.Err()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeDrain)
	defer cancel()
	return client.Close(ctx)
}

// drain waits until no claims and no runs are left, for the drain timeout at most,
// and returns how to go on.
func (s *Server) drain(client *instance.Client, hs *claims.Holders, xs *executor.Executors) StopMode {
	s.log.Info("draining", keyClaims, hs.Count(), keyRuns, xs.Count(), keyDuration, s.cfg.DrainTimeout)
	tick := time.NewTicker(drainCheck)
	defer tick.Stop()
	timeout := time.NewTimer(max(0, s.cfg.DrainTimeout))
	defer timeout.Stop()
	for hs.Count()+xs.Count() > 0 {
		select {
		case <-tick.C:
		case <-timeout.C:
			return Revoke
		case <-client.Done():
			return Revoke
		case mode := <-s.stops:
			if mode > Drain {
				return mode
			}
		}
	}
	return Revoke
}

// stopHolders has the holders stop of an instance that can't go on: it may not
// be able to do that itself. Processes get the time that they may take.
func (s *Server) stopHolders(hs *claims.Holders, why *problem.Error) {
	hs.InvalidateAll(problem.New(problem.ClaimLost, "berth has ended on this host: %w", why))
	look := time.NewTicker(drainCheck)
	defer look.Stop()
	late := time.After(grace.Stop + grace.Kill)
	for hs.CountProcesses() > 0 {
		select {
		case <-look.C:
		case <-late:
			return
		}
	}
}
