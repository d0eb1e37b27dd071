//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/store"
)

// options say what a campaign does.
type options struct {
	berth, dir string
	seed       uint64
	duration   time.Duration
	rate       float64
	instances  int
	loopback   bool
	serveTime  time.Duration
	phase      time.Duration
	only       string
	without    string
}

// campaign is one in progress.
type campaign struct {
	options
	begun   time.Time
	net     network
	cluster *cluster
	hosts   []*host
	referee *referee

	mu       sync.Mutex // guards what follows
	weather  map[string]map[int]weather
	spoiled  int
	injected map[kind]int
	missing  map[kind]int // faults that had nothing to break
	moves    moves
	served   []time.Duration // how long each phase took to be served
	keys     map[string]int  // in etcd after the last phase, by kind
	changes  *os.File
}

// hostCount is how many hosts there are, next to three members of etcd.
const hostCount = 4

func main() { os.Exit(run(os.Args[1:])) }

// roles are the parts that processes of this program play.
var roles = map[string]func([]string) error{
	"member": func(args []string) error { return playMember(args[0]) },
	"load":   playLoad,
	"job":    playJob,

	"neighbor": playNeighbor,
}

func run(args []string) int {
	if len(args) > 0 && roles[args[0]] != nil {
		if err := roles[args[0]](args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", args[0], err)
			return 3
		}
		return 0
	}
	if len(args) > 0 && (args[0] == "init" || args[0] == "inside") {
		return inside(args[0], args[1:])
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		return 2
	}
	if !o.loopback {
		code, err := enclose(args)
		if err == nil {
			return code
		}
		fmt.Fprintf(os.Stderr, "campaign: namespaces are not permitted (%v): hosts reach etcd through relays on loopback\n", err)
	}
	o.loopback = true
	return fight(o)
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("campaign", flag.ContinueOnError)
	f.StringVar(&o.berth, "berth", "bin/berth", "the binary of berth")
	f.StringVar(&o.dir, "dir", "", "directory for logs and what the referee saw; a new one if empty")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the plan; by chance if 0")
	f.DurationVar(&o.duration, "duration", 5*time.Minute, "time after which no further phase begins")
	f.DurationVar(&o.phase, "phase", usualPhase, "time for the faults of a phase")
	f.DurationVar(&o.serveTime, "serve-time", 90*time.Second, "time within which everything must be served after a phase")
	f.Float64Var(&o.rate, "rate", 60, "claims a second that the cheap clients of a host make at most")
	f.IntVar(&o.instances, "instances", 1, "instances of the Go API of a host; several also wait for a pool that is always full")
	f.BoolVar(&o.loopback, "loopback", false, "use no namespaces")
	f.StringVar(&o.only, "only", "", "kinds of faults, and neighbors, comma-separated; all if empty")
	f.StringVar(&o.without, "without", "", "kinds of faults, or neighbors, that are left out, comma-separated")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not understood", f.Args())
	}
	if o.instances < 1 {
		return o, fmt.Errorf("-instances: %d is less than 1", o.instances)
	}
	var err error
	o.berth, err = filepath.Abs(o.berth)
	if err == nil {
		_, err = os.Stat(o.berth)
	}
	if err != nil {
		return o, fmt.Errorf("-berth: %w: make build makes it", err)
	}
	return o, nil
}

// fight runs the campaign.
func fight(o options) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Outside of namespaces, what dead processes leave behind is this one's to end.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	c := &campaign{options: o, begun: time.Now(), weather: map[string]map[int]weather{}, injected: map[kind]int{}, missing: map[kind]int{}}
	processes := &processes{}
	var end context.CancelFunc
	processes.ctx, end = context.WithCancel(context.Background())
	err := c.prepare(ctx, processes)
	if err == nil {
		err = c.fight(ctx)
	}
	if c.referee != nil {
		if err != nil && ctx.Err() == nil {
			c.referee.note("campaign", err.Error())
		}
		for _, text := range processes.crashes() {
			c.referee.note("crash", text)
		}
		c.report(os.Stdout, ctx.Err() != nil)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
	}
	end()
	processes.wg.Wait()
	if c.net != nil {
		c.net.close()
	}
	if o.loopback {
		sweep()
	}
	if err != nil || c.referee == nil || len(c.referee.violations) > 0 {
		return 1
	}
	return 0
}

// prepare starts everything.
func (c *campaign) prepare(ctx context.Context, ps *processes) (err error) {
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "campaign-"); err != nil {
			return err
		}
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	where := "network namespaces"
	if c.loopback {
		where = "relays on loopback"
	}
	fmt.Fprintf(os.Stderr, "campaign: SEED=%d for %s through %s; logs and what the referee sees are in %s\n", c.seed, c.duration, where, c.dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var names []string
	for i := range 3 {
		names = append(names, memberName(i))
	}
	for i := range hostCount {
		names = append(names, hostName(i))
	}
	if c.loopback {
		c.net = newRelayed()
	} else if c.net, err = newSwitched(names, c.seed); err != nil {
		return err
	}
	ps.net = c.net
	if c.cluster, err = newCluster(ps, self, c.dir, 3); err != nil {
		return err
	}
	c.referee = newReferee(c.cluster, c.dir)
	socket := filepath.Join(c.dir, "referee.sock")
	if _, err := c.referee.listen(socket); err != nil {
		return err
	}
	if c.changes, err = os.Create(filepath.Join(c.dir, "faults.log")); err != nil {
		return err
	}
	if err := c.referee.begin(0); err != nil {
		return err
	}
	go c.referee.watch(ps.ctx)
	if !c.takesPart("neighbors") {
		c.referee.neighbors.leftOut = "by -only or -without"
	} else if err := admitNeighbors(c.dir, socket); err != nil {
		c.referee.neighbors.leftOut = err.Error()
	}
	for i := range hostCount {
		var more []string
		if i == neighborHost && c.referee.neighbors.leftOut == "" {
			more = neighborSettings()
		}
		h, err := newHost(ps, c.cluster, self, c.dir, socket, i, c.options, more...)
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
		c.referee.loadNames = append(c.referee.loadNames, h.name)
	}
	c.startNeighbors(ps, socket)
	for name := range specs {
		if err := c.setPool(ctx, name); err != nil {
			return err
		}
	}
	_, err = c.operate(ctx, "limits", "set", "--max-concurrent-runs", "20")
	return err
}

// takesPart says whether faults of a kind, or the neighbors, are not left out.
func (o *options) takesPart(kind string) bool {
	listed := func(kinds string) bool { return slices.Contains(strings.Split(kinds, ","), kind) }
	return (o.only == "" || listed(o.only)) && !listed(o.without)
}

// fight has one phase after the other.
func (c *campaign) fight(ctx context.Context) error {
	can := func(t trait) bool {
		there := true
		switch t.needs {
		case namespaces:
			there = !c.loopback
		case mounts:
			there = !c.loopback && c.hosts[0].ownDisk
		case neighbors:
			there = c.referee.neighbors.leftOut == ""
		}
		return there && c.takesPart(string(t.kind))
	}
	for i, p := range plan(c.seed, 1+int(c.duration/c.phase), hostCount, 3, can) {
		if i > 0 && time.Since(c.begun) >= c.duration {
			break
		}
		if err := c.referee.begin(i + 1); err != nil {
			return err
		}
		c.referee.rest(false)
		c.have(ctx, i+1, p)
		if ctx.Err() != nil {
			return nil
		}
		if err := c.awaitServed(ctx, i+1); err != nil {
			return err
		}
	}
	return nil
}

// have has the faults of a phase, and heals them all.
func (c *campaign) have(ctx context.Context, n int, p phase) {
	over, cancel := context.WithTimeout(ctx, c.phase)
	defer cancel()
	var all sync.WaitGroup
	for _, f := range p {
		scale := float64(c.phase) / float64(usualPhase)
		f.At, f.For = time.Duration(scale*float64(f.At)), time.Duration(scale*float64(f.For))
		all.Go(func() {
			pause(over, f.At)
			begun := time.Now()
			if f.reaches(neighborHost) {
				from := now()
				defer func() {
					c.referee.mu.Lock()
					defer c.referee.mu.Unlock()
					c.referee.neighbors.disturb(from, now())
				}()
			}
			heal, err := c.inject(over, f)
			c.tell("phase %d: %s for %s on %s, %s: %v", n, f.Kind, f.For.Round(time.Millisecond), hostName(f.Host), memberName(f.Member), problem(err))
			c.count(f.Kind, begun, err)
			if f.Kind.disturbs() {
				defer func() { c.disturbed(begun) }()
			}
			if heal == nil {
				return
			}
			pause(over, f.For)
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
			defer cancel()
			if err := heal(within); err != nil && ctx.Err() == nil {
				c.tell("phase %d: %s is not over: %v", n, f.Kind, err)
				if !errors.Is(err, syscall.ESRCH) {
					c.referee.note("campaign", fmt.Sprintf("%s is not over: %v", f.Kind, err))
				}
			}
			c.tell("phase %d: %s is over", n, f.Kind)
		})
	}
	all.Wait()
	<-over.Done()
}

// count notes that a fault has begun, or why not.
func (c *campaign) count(k kind, begun time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing notApplicable
	switch {
	case err == nil:
		c.injected[k]++
		c.moves.begun = append(c.moves.begun, begun, time.Now()) // it may have waited for what it breaks
	case errors.As(err, &missing):
		c.missing[k]++
	}
}

// disturbed notes for how long no queue had to move.
func (c *campaign) disturbed(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moves.disturbed = append(c.moves.disturbed, span{since, time.Now().Add(quietAfter)})
}

func problem(err error) string {
	if err == nil {
		return "begun"
	}
	return "not begun: " + err.Error()
}

// tell writes a line to the log of faults.
func (c *campaign) tell(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.changes, "%s %s\n", time.Since(c.begun).Round(time.Millisecond), fmt.Sprintf(format, args...))
}

// tellEvery is how often the log of faults says what is not served yet.
const tellEvery = 10 * time.Second

// awaitServed has the load rest, and checks that all is served and nothing is left.
func (c *campaign) awaitServed(ctx context.Context, n int) error {
	begun := time.Now()
	c.referee.rest(true)
	within, cancel := context.WithTimeout(ctx, c.serveTime)
	defer cancel()
	var left []string
	reported := begun
	ok := until(within, 100*time.Millisecond, func() bool {
		left = c.referee.unserved()
		if len(left) == 0 && c.referee.caughtUp(within) == nil {
			left = append(c.referee.unserved(), c.orphaned(within)...)
		}
		if len(left) > 0 && time.Since(reported) >= tellEvery {
			reported = time.Now()
			c.tell("phase %d: not served %s after all faults were healed: %s", n, time.Since(begun).Round(time.Second), strings.Join(left, "; "))
		}
		return len(left) == 0
	})
	if ctx.Err() != nil {
		return nil
	}
	c.referee.collect()
	c.judgeMoves()
	c.judgeNeighbors()
	if !ok {
		c.evidence(ctx)
		return fmt.Errorf("not served %s after all faults were healed: %s", c.serveTime, strings.Join(left, "; "))
	}
	c.cluster.measure(within)
	if out, err := c.operate(ctx, "verify"); err != nil {
		c.evidence(ctx)
		c.referee.note("verify", err.Error()+out)
	}
	c.mu.Lock()
	c.served = append(c.served, time.Since(begun))
	c.mu.Unlock()
	c.progress(n)
	return nil
}

// transient are the kinds of keys, by what follows the prefix of all, that are there only
// while something is under way. Of a pool only the spec remains.
var transient = []string{"active", "ids", "offers", "pending", "ready", "revoke"}

// remnants returns the keys that only work under way has. The mark of a canceled run remains with the
// record of the run. A neighbor may revoke a claim that it made with the id of the other's when that has
// just ended: berth deletes such a revocation a minute later.
func remnants(keys store.Keys, all []string) (left []string) {
	runs := map[string]bool{}
	for _, key := range all {
		if id, ok := strings.CutPrefix(key, keys.Runs()); ok {
			runs[id] = true
		}
	}
	for _, key := range all {
		name, rest, _ := strings.Cut(strings.TrimPrefix(key, keys.Prefix()), "/")
		run, _, _ := strings.Cut(rest, "/")
		switch {
		case name == "revoke" && strings.Contains(rest, "/"+calmPool+"-"):
		case slices.Contains(transient, name), name == "canceled" && !runs[run],
			name == "pools" && !strings.HasSuffix(key, "/spec"):
			left = append(left, key)
		}
	}
	return left
}

// orphaned says which keys are in etcd that only work under way has, and which members do not vote,
// and counts all keys by kind.
func (c *campaign) orphaned(ctx context.Context) (left []string) {
	counts := map[string]int{}
	err := c.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		prefix := c.referee.keys.Prefix()
		resp, err := e.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		var names []string
		for _, kv := range resp.Kvs {
			name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
			counts[name]++
			names = append(names, string(kv.Key))
		}
		left = remnants(c.referee.keys, names)
		return nil
	})
	if err != nil {
		return []string{err.Error()}
	}
	learners, err := c.cluster.learners(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	full, err := c.cluster.full(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	left = slices.Concat(left, learners, full)
	c.mu.Lock()
	c.keys = counts
	c.mu.Unlock()
	return left
}

// evidence writes down what berth says of a state that should not be.
func (c *campaign) evidence(ctx context.Context) {
	for _, args := range [][]string{{"claims", "list"}, {"pools", "list"}, {"runs", "list"}, {"hosts", "list"}, {"coordinator", "status"}, {"verify"}} {
		out, err := c.hosts[0].berth(ctx, args...)
		c.tell("berth %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	for _, h := range c.hosts { // their logs get the stacks of all goroutines
		for _, p := range h.processes() {
			p.mu.Lock()
			p.wanted = false
			p.mu.Unlock()
			p.signal(syscall.SIGQUIT)
			p.gone(ctx)
		}
	}
}
