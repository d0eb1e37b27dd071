package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth"
)

// plainBytes is the size of the floor's values: about that of a slot key's.
const plainBytes = 128

// plain opens a connection with etcd's own client, and nothing of berth's: the
// floor is what everybody can have.
func (c *Config) plain() (*clientv3.Client, error) {
	conn, err := clientv3.New(clientv3.Config{
		Endpoints: c.Etcd.Endpoints,
		TLS:       c.Etcd.TLS,
		Username:  c.Etcd.Username,
		Password:  c.Etcd.Password,
		Logger:    zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return conn, nil
}

// floorDoor puts a key in place of a claim, and deletes it in place of a
// release.
type floorDoor struct {
	conns []*clientv3.Client
	keys  []plainKey // by client
}

// plainKey is a key of one client of the floor, put or not.
type plainKey struct {
	conn *clientv3.Client
	name string
}

// plainValue is what the floor puts.
var plainValue = strings.Repeat("v", plainBytes)

// openFloor connects as many hosts as a case has.
func (r *runner) openFloor(clients, hosts int) (*floorDoor, error) {
	f := &floorDoor{}
	for range hosts {
		conn, err := r.cfg.plain()
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.conns = append(f.conns, conn)
	}
	for i := range clients {
		f.keys = append(f.keys, plainKey{
			conn: f.conns[i%hosts],
			name: fmt.Sprintf("%sfloor/%05d", r.prefix, i),
		})
	}
	return f, nil
}

func (f *floorDoor) claim(ctx context.Context, client int) (held, error) {
	k := &f.keys[client]
	_, err := k.conn.Put(ctx, k.name, plainValue)
	return k, err
}

// Release deletes the key.
func (k *plainKey) Release(ctx context.Context) error {
	_, err := k.conn.Delete(ctx, k.name)
	return err
}

func (f *floorDoor) close() error {
	var errs []error
	for _, conn := range f.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

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
