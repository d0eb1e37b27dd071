package registry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// maxTogether bounds the specs, and the ranges, of a transaction: each spec has 2 compares, and etcd takes 128.
	// maxDeleted bounds the keys that a transaction deletes.
	maxTogether = 30
	maxDeleted  = 1000
	// txnTimeout bounds a transaction.
	txnTimeout = 10 * time.Second
	// maxRounds bounds the rounds after which no less is left to be done than before. The pause after one that has
	// failed is longer than the one before by roundPause.
	maxRounds  = 8
	roundPause = 100 * time.Millisecond
)

// upgrading is what an upgrade does, in words for errors.
const upgrading = "the data could not be upgraded"

// errChanged is that something was put since it was read.
var errChanged = errors.New("another process changes it at the same time")

// Upgraded is what an upgrade has done.
type Upgraded struct {
	// Already is set if the data had the present layout before. Then nothing was done.
	Already bool
	// Pools is how many there are.
	Pools int
	// Keys is how many keys were deleted, those whose deletion etcd has not confirmed left out.
	Keys int64
	// Retained names the pools of which hosts retained slots, which they no longer do.
	Retained []string
}

// BusyError is that berth is in use, so that its data can't be upgraded.
type BusyError struct {
	// Processes are those that are alive, as HOST/INSTANCE, and Claims are held, as HOST/INSTANCE/CLAIM: at most 11 of
	// each, which is one more than the text names.
	Processes, Claims []string
}

// Error names at most 10 processes and 10 claims.
func (e *BusyError) Error() string {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"these processes are alive", e.Processes}, {"these claims are held", e.Claims}} {
		names := p.names
		if len(names) > maxNamed {
			names = append(names[:maxNamed:maxNamed], "and more")
		}
		if len(names) > 0 {
			parts = append(parts, p.what+": "+strings.Join(names, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// Upgrade makes data of the layout before 2 data of the layout 2: it puts the spec of each pool again, deletes all else
// of the pools, and puts the version last. It does nothing while a process is alive or a slot is held, which is a
// [*BusyError], and if a spec can't be read. What it does is complete in each transaction: it may be interrupted, run
// again, and run while another one runs. Its errors are problems; what was done before is returned with them.
func (l Layout) Upgrade(ctx context.Context) (Upgraded, error) {
	u := upgrade{Layout: l, least: -1}
	for {
		finished, err := u.round(ctx)
		switch {
		case finished:
			return u.done, nil
		case err != nil && ends(ctx, err), u.rounds > maxRounds:
			return u.done, failed(cmp.Or(err, errChanged))
		case err != nil:
			pause(ctx, time.Duration(u.rounds)*roundPause)
		}
	}
}

// ends reports whether an error ends the upgrade: trying again does not help.
func ends(ctx context.Context, err error) bool {
	var p *problem.Error
	return errors.As(err, &p) || errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrNoSpace) || ctx.Err() != nil
}

// failed returns the problem that an upgrade ends with.
func failed(err error) error {
	var p *problem.Error
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, errChanged):
		return problem.New(problem.Precondition, upgrading+": %w", err)
	}
	return store.Problem(upgrading, err)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// upgrade is one call of [Layout.Upgrade].
type upgrade struct {
	Layout
	done Upgraded
	// least is the least that was found to be done; -1 if nothing was read. Rounds counts those since then.
	least, rounds int
}

// round reads what there is to be done, and does it. It has finished if that was nothing but to put the version, or if
// that was there. It ends early with [errChanged].
func (u *upgrade) round(ctx context.Context) (finished bool, err error) {
	u.rounds++
	s, err := u.survey(ctx)
	switch {
	case err != nil:
		return false, err
	case s.upgraded:
		u.done.Already = u.least < 0
		return true, nil
	}
	if err := s.obstacle(); err != nil {
		return false, err
	}
	left := s.left()
	if u.least < 0 || left < u.least {
		u.least, u.rounds = left, 0
	}
	u.note(s)
	for _, txn := range s.transactions(u.base()) {
		if err := u.send(ctx, txn); err != nil {
			return false, err
		}
	}
	return left == 0, nil
}

// note notes what a survey says of the pools.
func (u *upgrade) note(s *survey) {
	u.done.Pools = s.kept + len(s.specs)
	for _, is := range s.specs {
		if is.retain > 0 && !slices.Contains(u.done.Retained, is.pool) {
			u.done.Retained = append(u.done.Retained, is.pool)
		}
	}
}

// base returns the conditions of each transaction: no process is alive, and there is no version.
func (u *upgrade) base() []*pb.Compare {
	return []*pb.Compare{store.NonePutSince(u.Keys.Hosts(), 0), u.absent()}
}

// send sends a transaction, and counts the keys that it has deleted.
func (u *upgrade) send(ctx context.Context, txn *pb.TxnRequest) error {
	ctx, cancel := context.WithTimeout(ctx, txnTimeout)
	defer cancel()
	resp, err := u.Backend.Txn(ctx, txn)
	if err != nil {
		return err
	}
	if !resp.Succeeded {
		return errChanged
	}
	for _, r := range resp.Responses {
		u.done.Keys += r.GetResponseDeleteRange().GetDeleted()
	}
	return nil
}
