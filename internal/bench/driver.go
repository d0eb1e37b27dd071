package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
)

// Driver carries out the operations of a load: claims through the Go API or over
// HTTP, or plain writes to etcd. Clients are numbered from 0.
type Driver interface {
	// Claim returns when the claim is granted. Nil is a claim that is never released.
	Claim(ctx context.Context, client int) (Held, error)
	// Close closes what the driver has opened.
	Close() error
}

// Preparer is a driver with something to do before each claim, which does not count.
type Preparer interface {
	Prepare(ctx context.Context, client int) error
}

// Tidier is a driver that leaves something behind which would disturb the next round.
type Tidier interface {
	Tidy(ctx context.Context) error
}

// fleet is a driver with a host for each instance of berth.
type fleet interface {
	Driver
	// claimUntil claims, and gives the claim up if it is not granted until a time, with
	// [errCut].
	claimUntil(ctx context.Context, client int, until time.Time) (Held, error)
	// borrow returns a driver that claims such slots through the first hosts, which
	// remain this driver's to close.
	borrow(hosts int, slots instance.Slots) fleet
	// pids returns the processes of the instances.
	pids() []int
	// memory returns what the instances take together, in megabytes (of 2^20 bytes).
	memory() (float64, error)
	// count returns the sum of a counter of all instances.
	count(ctx context.Context, metric string) (float64, error)
}

// borrowed are hosts that belong to another driver, which closes them.
type borrowed struct{ fleet }

// Close does nothing.
func (borrowed) Close() error { return nil }

// Held is a claim that was granted.
type Held interface {
	// Release returns when the slots are free.
	Release(ctx context.Context) error
}

// instances is the driver of the Go API: an instance of berth for each host.
type instances struct {
	clients  []*instance.Client
	host     func(client int) int // whose instance a client uses
	slots    instance.Slots
	registry *prometheus.Registry // of the metrics of all, by host
	before   float64              // megabytes of this process without the instances
}

// openInstances opens an instance for each host, all in this process.
func (r *Runner) openInstances(ctx context.Context, hosts int, slots instance.Slots) (*instances, error) {
	d := &instances{host: evenly(hosts), slots: slots, registry: prometheus.NewRegistry(), before: heap()}
	for i := range hosts {
		o := r.Options()
		o.Host = fmt.Sprintf("bench-%d", i+1)
		o.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"host": o.Host}, d.registry)
		c, err := instance.Open(ctx, o)
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.clients = append(d.clients, c)
	}
	return d, nil
}

// evenly spreads clients over hosts.
func evenly(hosts int) func(client int) int { return func(client int) int { return client % hosts } }

// Claim claims through the client's instance.
func (d *instances) Claim(ctx context.Context, client int) (Held, error) {
	return d.claim(ctx, client)
}

func (d *instances) claimUntil(ctx context.Context, client int, until time.Time) (Held, error) {
	h, err := d.claim(ctx, client, instance.WithWait(waitUntil(until)))
	if instance.ErrorCode(err) == string(problem.ClaimTimeout) {
		err = errCut
	}
	return h, err
}

// waitUntil returns how long a claim may wait that is given up at a time: not 0, which would
// not be a wait.
func waitUntil(t time.Time) time.Duration { return max(time.Millisecond, time.Until(t)) }

func (d *instances) claim(ctx context.Context, client int, opts ...instance.ClaimOption) (Held, error) {
	cl, err := d.clients[d.host(client)].Claim(ctx, d.slots, opts...)
	if err != nil {
		return nil, err // and no claim, not even a nil one
	}
	return cl, nil
}

func (d *instances) borrow(hosts int, slots instance.Slots) fleet {
	return borrowed{&instances{clients: d.clients[:hosts], host: evenly(hosts), slots: slots}}
}

func (*instances) pids() []int { return []int{os.Getpid()} }

func (d *instances) memory() (float64, error) { return max(0, heap()-d.before), nil }

// heap returns the memory of this process that is in use, in megabytes.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what a pool held is garbage only after the second
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc+s.StackInuse) / (1 << 20)
}

func (d *instances) count(_ context.Context, metric string) (sum float64, err error) {
	families, err := d.registry.Gather()
	if err != nil {
		return 0, fmt.Errorf("read the metrics: %w", err)
	}
	for _, f := range families {
		if f.GetName() == metric {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum, nil
}

// Close closes the instances.
func (d *instances) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	var errs []error
	for _, c := range d.clients {
		errs = append(errs, c.Close(ctx))
	}
	return errors.Join(errs...)
}

// PlainClient opens a connection with etcd's own client.
func (c *Config) PlainClient() (*clientv3.Client, error) {
	var conf *tls.Config
	if c.Etcd.TLS != nil {
		conf = c.Etcd.TLS()
	}
	conn, err := clientv3.New(clientv3.Config{
		Endpoints: c.Etcd.Endpoints,
		TLS:       conf,
		Username:  c.Etcd.Username,
		Password:  c.Etcd.Password,
		Logger:    zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return conn, nil
}

// floor is a driver that puts a key for a claim, and deletes it for a release.
type floor struct {
	conns []*clientv3.Client
	keys  []plainKey // by client
}

// plainKey is the key of one client of the floor.
type plainKey struct {
	conn *clientv3.Client
	name string
}

// plainValue is what the floor puts: about as large as the value of a slot key.
var plainValue = strings.Repeat("v", 128)

// Floor returns the floor for clients on hosts, each of which has a connection of its
// own.
func (r *Runner) Floor(clients, hosts int) (Load, error) {
	d, err := Labeled(context.Background(), "reference", func(context.Context) (Driver, error) {
		return r.openFloor(clients, hosts)
	})
	return Load{Driver: d, Clients: clients, Duration: r.Duration}, err
}

func (r *Runner) openFloor(clients, hosts int) (*floor, error) {
	f := &floor{}
	for range hosts {
		conn, err := r.PlainClient()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.conns = append(f.conns, conn)
	}
	for i := range clients {
		f.keys = append(f.keys, plainKey{conn: f.conns[i%hosts], name: fmt.Sprintf("%sfloor/%05d", r.Prefix, i)})
	}
	return f, nil
}

// SlowFloor returns a floor of one client that holds as long as another load does. It
// puts right after a delete, and deletes after the hold: the put takes as long as any
// write, and the delete as long as a write on an idle etcd.
func (r *Runner) SlowFloor(like Load) (Load, error) {
	l, err := r.Floor(1, 1)
	l.Hold, l.Duration = like.Hold, like.Duration
	return l, err
}

// Claim puts the client's key.
func (f *floor) Claim(ctx context.Context, client int) (Held, error) {
	k := &f.keys[client]
	_, err := k.conn.Put(ctx, k.name, plainValue)
	return k, err
}

// Release deletes the key.
func (k *plainKey) Release(ctx context.Context) error {
	_, err := k.conn.Delete(ctx, k.name)
	return err
}

// Close closes the connections.
func (f *floor) Close() error {
	var errs []error
	for _, conn := range f.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
