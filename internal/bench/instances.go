package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthhq/berth"
)

// instances is the door of the Go API: an instance of berth for each host.
type instances struct {
	clients []*berth.Client
	slots   berth.Slots
}

// openInstances opens one instance for each host, all in this process.
func (r *runner) openInstances(ctx context.Context, hosts int, slots berth.Slots) (*instances, error) {
	d := &instances{slots: slots}
	for i := range hosts {
		o := r.options()
		o.Host = fmt.Sprintf("bench-%d", i+1)
		c, err := berth.Open(ctx, o)
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		d.clients = append(d.clients, c)
	}
	return d, nil
}

func (d *instances) claim(ctx context.Context, client int) (held, error) {
	cl, err := d.clients[client%len(d.clients)].Claim(ctx, d.slots)
	if err != nil {
		return nil, err // and no claim, not even a nil one
	}
	return cl, nil
}

func (d *instances) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, c := range d.clients {
		errs = append(errs, c.Close(ctx))
	}
	return errors.Join(errs...)
}
