package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
)

// HostLeft is what a host holds.
type HostLeft struct {
	Host string `json:"host"`
	// Running names the instances of the host that were seen within [lease.PresenceTTL].
	Running []string    `json:"running"`
	Claims  []LeftClaim `json:"claims"`
	// Steps and Runs are how many step instances and runs without steps it has.
	Steps int `json:"steps"`
	Runs  int `json:"runs"`
	// Leases is how many leases all of it hangs on.
	Leases int `json:"leases"`

	leases []store.LeaseID
}

// LeftClaim is a claim whose holder may still run.
type LeftClaim struct {
	Claim    string         `json:"claim"`
	Instance string         `json:"instance"`
	Pools    map[string]int `json:"pools"`
	Fence    int64          `json:"fence"`
}

// Tokens returns the fencing tokens of the claims, in ascending order.
func (l *HostLeft) Tokens() string {
	var all []int64
	for _, c := range l.Claims {
		all = append(all, c.Fence)
	}
	slices.Sort(all)
	var texts []string
	for _, fence := range slices.Compact(all) {
		texts = append(texts, strconv.FormatInt(fence, 10))
	}
	return strings.Join(texts, ", ")
}

// Summary counts what is left.
func (l *HostLeft) Summary() string {
	return fmt.Sprintf("%s, %s and %s, on %s", text.Count(len(l.Claims), "claim"), text.Count(l.Steps, "step instance"), text.Count(l.Runs, "run"), text.Count(l.Leases, "lease"))
}

// Left returns what all instances of a host hold.
func (r *Reader) Left(ctx context.Context, host string) (*HostLeft, error) {
	return r.left(ctx, host, false)
}

// left returns what the instances of a host hold; with unseen, only those that were not seen. An instance
// counts as seen while it has a presence key with its own token: a later process that has taken its name waits
// for these leases.
func (r *Reader) left(ctx context.Context, host string, unseen bool) (*HostLeft, error) {
	present, err := r.Hosts(ctx)
	if _, err = Corrupt(err); err != nil {
		return nil, err
	}
	b, keys := r.Runs.Backend, r.Runs.Keys
	listed, err := lease.Listed(ctx, b, keys, host)
	if err != nil {
		return nil, store.Problem("the leases of the host could not be read", err)
	}
	l := &HostLeft{Host: host, Running: []string{}, Claims: []LeftClaim{}}
	seen := map[string]string{} // tokens, by instance
	for _, p := range present {
		if p.Host == host {
			l.Running = append(l.Running, p.Instance)
			if unseen {
				seen[p.Instance] = p.Token
			}
		}
	}
	theirs := map[store.LeaseID]bool{} // of instances that were seen
	for _, one := range listed {
		if token, ok := seen[one.Instance]; ok && token == one.Token {
			theirs[one.ID] = true
		} else {
			l.leases = append(l.leases, one.ID)
		}
	}
	if err := r.addClaimsLeft(ctx, l, seen, theirs); err != nil {
		return nil, err
	}
	active, err := r.Steps.Active(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range active {
		if a.Host == host && slices.ContainsFunc(a.Leases, func(id store.LeaseID) bool { return slices.Contains(l.leases, id) }) {
			l.Steps, l.Runs = l.Steps+a.Steps, l.Runs+a.Runs
		}
	}
	l.Leases = len(l.leases)
	return l, nil
}

// addClaimsLeft adds the claims on the leases that are left, and those on leases that are not listed, of
// instances without a presence key.
func (r *Reader) addClaimsLeft(ctx context.Context, l *HostLeft, seen map[string]string, theirs map[store.LeaseID]bool) error {
	holders, waiters, err := r.Claims(ctx)
	if err != nil {
		return err
	}
	isLeft := func(host, instance string, id store.LeaseID) bool {
		if host != l.Host || id == 0 || theirs[id] {
			return false
		}
		if slices.Contains(l.leases, id) {
			return true
		}
		if _, ok := seen[instance]; ok {
			return false
		}
		l.leases = append(l.leases, id)
		return true
	}
	for _, h := range holders {
		if isLeft(h.Host, h.Instance, h.Lease) {
			l.Claims = append(l.Claims, LeftClaim{Claim: h.Claim, Instance: h.Instance, Pools: h.Pools, Fence: int64(h.Fence)})
		}
	}
	for _, w := range waiters {
		isLeft(w.Host, w.Instance, w.Lease)
	}
	return nil
}

// FreeHost revokes the leases of instances of a host that have not been seen, and so frees by force what
// they hold, and returns what that was. The holders may still run.
func (o Operator) FreeHost(ctx context.Context, host string) (*HostLeft, error) {
	if err := o.mayOperate(); err != nil {
		return nil, err
	}
	l, err := o.left(ctx, host, true)
	if err != nil {
		return nil, err
	}
	if l.Leases == 0 {
		if len(l.Running) > 0 {
			return nil, problem.New(problem.Precondition, "nothing of host %q can be freed: what it holds belongs to processes that were seen within %s (%s). Stop them, wait %[2]s, and try again", host, lease.PresenceTTL, strings.Join(l.Running, ", "))
		}
		return l, nil
	}
	err = o.Act(ctx, audit.FreeHost, host, "", func(ctx context.Context) (audit.Effect, error) {
		e := audit.Effect{Before: l.Summary()}
		for _, id := range l.leases {
			if err := lease.End(ctx, o.Runs.Backend, id); err != nil {
				return e, store.Problem("not all of it was freed", err)
			}
		}
		e.After = "freed"
		if tokens := l.Tokens(); tokens != "" {
			e.After += "; the holders of these fencing tokens may still run: " + tokens
		}
		return e, nil
	})
	return l, err
}
