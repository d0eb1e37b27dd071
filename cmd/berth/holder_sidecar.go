package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

// sidecarHolder keeps claims at a sidecar. While that is away, a wait goes on
// when it is back, and a claim that is held is trusted for as long as it was
// told to last.
type sidecarHolder struct {
	client *sidecar.Client
	local  bool // over a unix socket: the sidecar can see who asks
	// asker is this exec and no other, on whatever host: so that it finds its own
	// claim when it asks again, and nobody else does.
	asker string
	log   hclog.Logger
}

// openSidecar looks whether a sidecar is there and ready.
func openSidecar(ctx context.Context, s config.Settings, log hclog.Logger) (holder, error) {
	conf, err := s.SidecarTLS()
	if err != nil {
		return nil, err
	}
	client, err := sidecar.Dial(s.Sidecar, s.Token.Reveal(), sidecar.WithTLS(conf))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	h := &sidecarHolder{client: client, local: strings.HasPrefix(s.Sidecar, "unix:"), asker: rand.Text(), log: log}
	if err := client.Ready(ctx); err != nil {
		client.Close()
		return nil, sidecarProblem(err, s.Sidecar)
	}
	return h, nil
}

// sidecarTimeout bounds the wait for one answer that needs no slots.
const sidecarTimeout = 5 * time.Second

// sidecarProblem makes a problem of an error that is none, and says what to do
// about a certificate that nobody known has signed.
func sidecarProblem(err error, addr string) error {
	var stranger x509.UnknownAuthorityError
	if errors.As(err, &stranger) {
		return problem.New(problem.Unavailable, "%w; name the file of the authority that has signed the certificate with --sidecar-cacert", err)
	}
	if problem.CodeOf(err) != problem.Internal {
		return err
	}
	return problem.New(problem.Unavailable, "the sidecar at %s does not answer: %w", addr, err)
}

func (h *sidecarHolder) lease(ctx context.Context, name string) (time.Duration, error) {
	p, err := h.client.Pool(ctx, name)
	if err != nil {
		return 0, err
	}
	return time.Duration(p.LeaseDuration), nil
}

func (h *sidecarHolder) claim(ctx context.Context, r pool.Request) (held, error) {
	request := sidecar.ClaimRequest{
		ID: r.ID, Pools: r.Slots, Priority: r.Priority, Wait: sidecar.DurationOf(r.Wait),
		RunID: r.Holder.Run, StepKey: r.Holder.Step, Labels: r.Holder.Labels, Asker: h.asker,
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
	r := pool.Reason{Text: w.Reason.Text, Position: w.Reason.Position, Line: w.Reason.Line}
	for _, s := range w.Reason.Pools {
		r.Pools = append(r.Pools, pool.Shortage{Pool: s.Pool})
	}
	return r, nil
}

func (h *sidecarHolder) close() error {
	h.client.Close()
	return nil
}
