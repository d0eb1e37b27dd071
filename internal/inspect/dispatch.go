package inspect

import (
	"context"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool/list"
)

// Dispatcher is the instance that offers slots to the waiting claims of all hosts.
type Dispatcher struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Kind     string    `json:"kind" enum:"command,service,server,coordinator" doc:"The kind of its process. A process dispatches before those of earlier kinds."`
	Since    time.Time `json:"since" doc:"When it began to dispatch."`
}

// Dispatch is who dispatches.
type Dispatch struct {
	// Dispatcher is nil if there is none, or if it ends.
	Dispatcher *Dispatcher
	// Pending counts the pools in which claims wait that have no offer.
	Pending int
}

// Dispatch reads who dispatches.
func (r *Reader) Dispatch(ctx context.Context) (Dispatch, error) {
	d, err := list.ReadDispatch(ctx, r.Runs.Backend, r.Runs.Keys)
	if err != nil {
		return Dispatch{}, store.Problem("the dispatcher could not be read", err)
	}
	out := Dispatch{Pending: d.Pending}
	if role := d.Role; role.Host != "" && !role.Ends {
		out.Dispatcher = &Dispatcher{Host: role.Host, Instance: role.Instance, Kind: string(role.Kind), Since: role.Since}
	}
	return out, nil
}

// Warning says that claims wait and nobody dispatches, and what happens then; empty if that is not so.
func (d Dispatch) Warning() string {
	if d.Dispatcher != nil || d.Pending == 0 {
		return ""
	}
	return "claims wait in " + text.Count(d.Pending, "pool") + ", and no process dispatches: " + servedAlone
}

// servedAlone says what happens while nobody dispatches.
const servedAlone = "each instance serves its own waiting claims, every few seconds"
