package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/own"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// holder is where exec keeps its claim.
type holder interface {
	// lease is how long the leases of a pool's claims live.
	lease(ctx context.Context, pool string) (time.Duration, error)
	// claim takes the slots, waiting as long as the request says. If ctx ends
	// first, nothing is taken and nothing waits. After an error of [isAway] the same
	// request finds its claim, or its place in the wait queue.
	claim(ctx context.Context, r pool.Request) (held, error)
	// why returns why a claim waits. An unknown claim is a problem.
	why(ctx context.Context, id string) (pool.Reason, error)
	// close gives up what is left, within a few seconds.
	close() error
}

// held is a claim that a [holder] has.
type held interface {
	fence() int64
	// validity returns how long the claim is valid unless it is renewed again, and how
	// long its holder may take to stop.
	validity() (left, grace time.Duration)
	// refresh reads the validity again, after this process was suspended.
	refresh(ctx context.Context)
	// ended is closed when the claim was lost or revoked; err then says so.
	ended() <-chan struct{}
	err() error
	// whyKilled returns why the sidecar killed the process: the claim was lost or revoked,
	// and exec did not stop the process. It is nil if another process killed it.
	whyKilled() error
	// bind binds the claim to a process.
	bind(ctx context.Context, pid int) error
	// release gives the slots back.
	release(ctx context.Context) error
}

// minExecLease is the shortest lease that leaves time to stop a child: below it
// a change of etcd's leader alone would kill what it protects.
const minExecLease = 10 * time.Second

// errDeleted is the problem of a pool that was deleted while slots of it were held.
var errDeleted = problem.New(problem.PoolNotFound, "the pool was deleted")

// checkLeases refuses pools whose leases are too short for exec. A pool that is not there, or whose spec can't be read, is
// left to the claim.
func checkLeases(ctx context.Context, h holder, slots map[string]int) error {
	for _, name := range sortedNames(slots) {
		d, err := h.lease(ctx, name)
		switch {
		case problem.CodeOf(err) == problem.PoolNotFound:
		case err != nil:
			return err
		case d > 0 && d < minExecLease:
			return problem.New(problem.Invalid,
				"pool '%s' has leases of %s, and exec needs %s to stop its command in time; 'berth pools set %s --lease-duration %s' changes that",
				name, text.Duration(d), text.Duration(minExecLease), name, text.Duration(minExecLease))
		}
	}
	return nil
}

// directHolder keeps claims straight on etcd, with an instance of berth that
// lives as long as exec does.
type directHolder struct{ client *instance.Client }

func openDirect(ctx context.Context, o instance.Options) (holder, error) {
	o.Role, o.Kind = "exec", instance.Command
	client, err := instance.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &directHolder{client}, nil
}

func (h *directHolder) lease(ctx context.Context, name string) (time.Duration, error) {
	p, err := h.client.Pool(ctx, name)
	if err == nil && p.Deleted {
		err = errDeleted
	}
	return p.LeaseDuration, err
}

func (h *directHolder) claim(ctx context.Context, r pool.Request) (held, error) {
	claim, err := h.client.Claim(ctx, r.Slots,
		instance.WithID(r.ID), instance.WithPriority(r.Priority), instance.WithWait(r.Wait),
		instance.WithRun(r.Holder.Run, r.Holder.Step), instance.WithLabels(r.Holder.Labels),
		instance.WithPID(os.Getpid()))
	if err != nil {
		return nil, h.client.Suggest(ctx, err, nil)
	}
	claim.Supervise(true) // exec runs as long as the command does
	return &directHeld{claim}, nil
}

func (h *directHolder) why(ctx context.Context, id string) (pool.Reason, error) {
	w, err := h.client.Why(ctx, id)
	return w.Reason, err
}

// close ends the instance. If the slots could not be given back, it is left
// alone: they are free when its leases end, and nothing is gained by waiting for
// an etcd that does not answer.
func (h *directHolder) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
	defer cancel()
	if claims, err := h.client.Held(ctx); err != nil || len(claims) > 0 {
		return h.client.Leave()
	}
	return h.client.Close(ctx)
}

type directHeld struct{ *instance.Claim }

func (c *directHeld) fence() int64                          { return int64(c.Fence()) }
func (c *directHeld) validity() (left, grace time.Duration) { return c.ValidFor() }

// refresh does nothing: the claim is renewed by this process, which was suspended.
func (c *directHeld) refresh(context.Context) {}

func (c *directHeld) ended() <-chan struct{} { return c.Context().Done() }
func (c *directHeld) err() error             { return c.Err() }

// whyKilled returns nil: only exec stops its command.
func (c *directHeld) whyKilled() error { return nil }

// bind has nothing to do: the claim lives as long as this process.
func (c *directHeld) bind(context.Context, int) error { return nil }

func (c *directHeld) release(ctx context.Context) error { return c.Release(ctx) }

// sidecarHolder keeps claims at a sidecar. If the sidecar is unavailable, a wait continues
// when it is back, and a claim that is held stays valid for as long as its last answer said.
type sidecarHolder struct {
	// client has a client token, which identifies this exec: requests with it are about the
	// claim of the first one, and requests without it are not.
	client *client.Client
	local  bool // over a unix socket, in one pid namespace: the sidecar can watch processes of this one
	log    hclog.Logger
}

// dialSidecar returns a client of the sidecar of the settings.
func dialSidecar(s config.Settings, log hclog.Logger) (*client.Client, error) {
	conf, err := s.SidecarTLS(log)
	if err != nil {
		return nil, err
	}
	dial := client.Dial
	if s.Insecure {
		dial = client.DialInsecure
	}
	return dial(s.Sidecar, s.Token.Reveal(), client.WithTLS(conf))
}

// openSidecar returns a holder at a sidecar that is ready.
func openSidecar(ctx context.Context, s config.Settings, log hclog.Logger) (holder, error) {
	client, err := dialSidecar(s, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	h := &sidecarHolder{client: client.WithClientToken(rand.Text()), log: log}
	if err := client.Ready(ctx); err != nil {
		client.Close()
		return nil, sidecarProblem(err, s.Sidecar)
	}
	if h.local, err = sharesPIDs(ctx, s.Sidecar); err != nil {
		client.Close()
		return nil, sidecarProblem(err, s.Sidecar)
	}
	return h, nil
}

// sharesPIDs reports whether a sidecar is at a unix socket and in the pid namespace of this process.
// A container often has another one than a sidecar on its host.
func sharesPIDs(ctx context.Context, addr string) (bool, error) {
	path, ok := strings.CutPrefix(addr, "unix://")
	if !ok {
		return false, nil
	}
	if err := own.Socket(strings.TrimSuffix(path, "/")); err != nil {
		return false, err
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimSuffix(path, "/"))
	if err != nil {
		return false, err
	}
	unix, ok := c.(*net.UnixConn)
	return ok && proc.PeerSharesPIDs(unix, 0), c.Close()
}

// sidecarTimeout bounds the wait for one answer that needs no slots.
const sidecarTimeout = 5 * time.Second

// sidecarProblem returns an error as a problem. Certificates that are not accepted are refused, with advice:
// waiting does not help.
func sidecarProblem(err error, addr string) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var verify *tls.CertificateVerificationError
	switch {
	case errors.As(err, &unknown):
		return &statusError{problem.ExitRefused, problem.New(problem.Unavailable, "%w; give the file of the authority that signed the certificate with --sidecar-cacert", err)}
	case errors.As(err, &name):
		return &statusError{problem.ExitRefused, problem.New(problem.Unavailable, "%w; use a name of the certificate in --sidecar", err)}
	case errors.As(err, &verify):
		return &statusError{problem.ExitRefused, problem.New(problem.Unavailable, "%w", err)}
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist):
		return problem.New(problem.Unavailable, "%w; no process listens there: is it running, and with this address in --listen or --socket? A coordinator, a worker and a source listen only with --listen", err)
	case problem.CodeOf(err) != problem.Internal:
		return err
	}
	return problem.New(problem.Unavailable, "the sidecar at %s does not answer: %w", addr, err)
}

func (h *sidecarHolder) lease(ctx context.Context, name string) (time.Duration, error) {
	p, err := h.client.Pool(ctx, name)
	switch {
	case err != nil:
		return 0, err
	case p.Deleted:
		return 0, errDeleted
	}
	return time.Duration(p.LeaseDuration), nil
}

func (h *sidecarHolder) claim(ctx context.Context, r pool.Request) (held, error) {
	request := api.ClaimRequest{
		ID: r.ID, Pools: r.Slots, Priority: r.Priority, Wait: api.DurationOf(r.Wait),
		RunID: r.Holder.Run, StepKey: r.Holder.Step, Labels: r.Holder.Labels,
	}
	if h.local { // until the command runs
		request.PID, request.OnlyKill = os.Getpid(), true
	}
	claim, err := h.client.Claim(ctx, request)
	if err != nil {
		return nil, err
	}
	return watchClaim(h, claim), nil
}

func (h *sidecarHolder) why(ctx context.Context, id string) (pool.Reason, error) {
	w, err := h.client.Why(ctx, id)
	if err != nil || w.Reason == nil {
		return pool.Reason{}, err
	}
	r := pool.Reason{Text: w.Reason.Text, Position: w.Reason.Position, Waiting: w.Reason.Waiting}
	for _, s := range w.Reason.Pools {
		r.Pools = append(r.Pools, pool.Shortage{Pool: s.Pool})
	}
	return r, nil
}

func (h *sidecarHolder) close() error {
	h.client.Close()
	return nil
}

// sidecarHeld is a claim at a sidecar. It is renewed regularly, to keep it and to read its
// validity, and follows the event of its end. The validity in an answer counts from when the
// request was sent, so that a sidecar that was stopped or restarted can't extend it.
type sidecarHeld struct {
	holder *sidecarHolder
	id     string
	first  *api.Claim

	stop  context.CancelFunc
	tasks sync.WaitGroup
	over  chan struct{} // closed when the claim has ended

	// mu guards what follows.
	mu     sync.Mutex
	claim  *api.Claim // the answer that is trusted longest
	reason error      // why it has ended
}

func watchClaim(h *sidecarHolder, claim *api.Claim) held {
	ctx, cancel := context.WithCancel(context.Background())
	c := &sidecarHeld{holder: h, id: claim.ID, first: claim, claim: claim, stop: cancel, over: make(chan struct{})}
	c.tasks.Go(func() { c.renewAll(ctx) })
	c.tasks.Go(func() { c.listen(ctx) })
	return c
}

// A claim is renewed renewalsPerLease times within its lease, so that its validity is never
// much older than the renewal of the sidecar, with pauses within these bounds.
const (
	renewalsPerLease           = 6
	minRenewPause, maxRenewAge = 250 * time.Millisecond, 10 * time.Second
	// renewTry bounds the wait for one answer, of a sidecar on the same machine.
	renewTry = 2 * time.Second
)

// renewAll renews the claim until ctx ends, or the claim does.
func (c *sidecarHeld) renewAll(ctx context.Context) {
	every := min(max(time.Duration(c.first.LeaseDuration)/renewalsPerLease, minRenewPause), maxRenewAge)
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.over:
			return
		case <-ctx.Done():
			return
		}
		err := c.renew(ctx, api.RenewRequest{})
		if timer.Reset(every); err != nil {
			timer.Reset(awayPause)
		}
	}
}

// renew renews the claim once.
func (c *sidecarHeld) renew(ctx context.Context, r api.RenewRequest) error {
	ctx, cancel := context.WithTimeout(ctx, renewTry)
	defer cancel()
	r.Fence = c.first.Fence // the id may be another's by now
	claim, err := c.holder.client.Renew(ctx, c.id, r)
	switch {
	case err == nil:
		c.trusted(claim)
	case isOver(err):
		c.end(err)
	case ctx.Err() == nil:
		c.holder.log.Debug("the claim could not be renewed", "claim", c.id, "error", err)
	}
	return err
}

// isOver reports whether an error says that a claim is not held any more.
func isOver(err error) bool {
	switch problem.CodeOf(err) {
	case problem.ClaimLost, problem.ClaimRevoked, problem.ClaimNotFound, problem.NotHolder:
		return true
	}
	return false
}

// listen waits for the end of the claim.
func (c *sidecarHeld) listen(ctx context.Context) {
	switch err := c.holder.client.Watch(ctx, c.id); {
	case ctx.Err() != nil:
	case err == nil:
		c.end(problem.New(problem.ClaimNotFound, "claim %q was released", c.id))
	case isOver(err):
		c.end(err)
	default: // its validity is known without that
		c.holder.log.Warn("the sidecar does not report the end of claims", "claim", c.id, "error", err)
	}
}

func (c *sidecarHeld) trusted(claim *api.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, _ := c.claim.Remaining()
	if now, _ := claim.Remaining(); now > was {
		c.claim = claim
	}
}

func (c *sidecarHeld) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil {
		c.reason = err
		close(c.over)
	}
}

func (c *sidecarHeld) fence() int64 { return c.first.Fence }

func (c *sidecarHeld) validity() (left, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claim.Remaining()
}

// refresh asks the sidecar, which may have kept the claim all the while.
func (c *sidecarHeld) refresh(ctx context.Context) {
	_ = c.renew(ctx, api.RenewRequest{}) // without an answer nothing is learnt
}

func (c *sidecarHeld) ended() <-chan struct{} { return c.over }

func (c *sidecarHeld) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// whyKilled asks the sidecar, which kills the process of a claim that exec has
// not stopped in time, or waits for what it said last before it went away.
func (c *sidecarHeld) whyKilled() error {
	if !c.holder.local {
		return nil // it can't
	}
	ctx, cancel := context.WithTimeout(context.Background(), renewTry)
	defer cancel()
	for c.renew(ctx, api.RenewRequest{}) != nil {
		if err := c.err(); problem.CodeOf(err).Exit() == problem.ExitLost {
			return err
		} else if err != nil {
			return nil // it was released because its process has ended
		}
		select {
		case <-c.over:
		case <-time.After(awayPause):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// bind has the sidecar watch the process itself, and kill it should exec not come
// to stop it. Where it can't, over TCP or in another pid namespace, the claim
// lives as long as it is renewed.
func (c *sidecarHeld) bind(ctx context.Context, pid int) error {
	if !c.holder.local {
		return nil
	}
	for pause := awayPause; ; {
		err := c.renew(ctx, api.RenewRequest{PID: pid, OnlyKill: true})
		switch {
		case problem.CodeOf(err) == problem.StateUnwritable:
			if pause == awayPause { // once
				c.holder.log.Warn("the claim stays bound to exec until the sidecar can write to its state directory", "claim", c.id, "error", err)
			}
			pause = maxRenewAge
		case err == nil, !isAway(err):
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release gives the claim back, trying until ctx ends.
func (c *sidecarHeld) release(ctx context.Context) error {
	c.stop()
	c.tasks.Wait()
	for {
		err := c.holder.client.ReleaseFence(ctx, c.id, c.first.Fence)
		if err == nil || !isAway(err) {
			return err
		}
		select {
		case <-time.After(awayPause):
		case <-ctx.Done():
			return err
		}
	}
}
