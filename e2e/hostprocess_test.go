//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/berthhq/berth/internal/instance"
)

// hostPart is what a host in a process of its own needs to know.
type hostPart struct {
	Endpoints []string
	Host      string
	StateDir  string // empty: it can't be resumed
}

// order is what a test tells a host.
type order struct {
	Do    string // claim, release, act, held
	ID    string
	Slots instance.Slots
}

// playHost is a program that uses berth: it does what it is asked to and reports what
// happens to its claims.
func playHost(part []byte, in io.Reader, say func(report)) error {
	var p hostPart
	if err := json.Unmarshal(part, &p); err != nil {
		return err
	}
	o := instance.Options{Endpoints: p.Endpoints, Host: p.Host, PollInterval: -1}
	if p.StateDir != "" {
		fixed(p.StateDir)(&o)
	}
	c, err := instance.Open(context.Background(), o)
	if err != nil {
		say(report{Event: "refused", Code: instance.ErrorCode(err), Error: err.Error()})
		return nil
	}
	h := &host{c: c, say: say, claims: map[string]*instance.Claim{}}
	held, err := c.Held(context.Background())
	if err != nil {
		return err
	}
	say(report{Event: "open"})
	for _, cl := range held {
		h.has("held", cl)
	}
	orders := json.NewDecoder(in)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return c.Leave()
		} else if err != nil {
			return err
		}
		h.obey(o)
	}
}

// host is a host process at work. It obeys one order after the other.
type host struct {
	c      *instance.Client
	say    func(report)
	claims map[string]*instance.Claim
}

func (h *host) obey(o order) {
	switch o.Do {
	case "claim":
		cl, err := h.c.Claim(context.Background(), o.Slots, instance.WithID(o.ID))
		if err != nil {
			h.say(report{Event: "refused", ID: o.ID, Code: instance.ErrorCode(err), Error: err.Error()})
			return
		}
		h.has("claimed", cl)
	case "release":
		if err := h.claims[o.ID].Release(context.Background()); err != nil {
			h.say(report{Event: "failed", Error: err.Error()})
			return
		}
		h.say(report{Event: "released", ID: o.ID})
	case "act":
		// As everyone should who was away: look before acting.
		if left, _ := h.claims[o.ID].ValidFor(); left > 0 {
			h.say(report{Event: "acted", ID: o.ID})
		} else {
			h.say(report{Event: "not acted", ID: o.ID})
		}
	}
}

// has tells of a claim, and later of its end.
func (h *host) has(event string, cl *instance.Claim) {
	h.claims[cl.ID] = cl
	context.AfterFunc(cl.Context(), func() {
		if err := cl.Err(); err != nil {
			h.say(report{Event: "ended", ID: cl.ID, Code: instance.ErrorCode(err), Error: err.Error()})
		}
	})
	h.say(report{Event: event, ID: cl.ID, Fence: cl.Fence(), Lease: int64(cl.Lease)})
}

// hostProcess is a host in a process of its own.
type hostProcess struct{ *process }

// startHost starts a host, and returns when it can claim.
func startHost(t testing.TB, part hostPart) *hostProcess {
	t.Helper()
	h := enterHost(t, part)
	h.hear("open", "")
	return h
}

// enterHost starts a host that may be refused.
func enterHost(t testing.TB, part hostPart) *hostProcess {
	t.Helper()
	h := &hostProcess{begins(t, part.Host, "host", part)}
	t.Cleanup(h.kill)
	return h
}

// claim has it claim, and waits until it has.
func (h *hostProcess) claim(id string, slots instance.Slots) report {
	h.t.Helper()
	h.tell(order{Do: "claim", ID: id, Slots: slots})
	return h.hear("claimed", id)
}
