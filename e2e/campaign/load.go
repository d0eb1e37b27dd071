//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
)

// poolSpec is a pool of the campaign. Leases are short, so that faults outlast them.
type poolSpec struct {
	limit int
	lease time.Duration
}

// specs are all pools. That of "one" never changes: its holders follow each other.
var specs = map[string]poolSpec{
	"db": {6, 5 * time.Second}, "api": {12, 5 * time.Second}, "bulk": {80, 5 * time.Second}, "one": {1, 5 * time.Second},
	"tmp": {5, 5 * time.Second}, "gpu": {3, 10 * time.Second}, "cpu": {5, 10 * time.Second}, "crowd": {8, 5 * time.Second},
	keptPool: {6, 10 * time.Second}, calmPool: {8, 10 * time.Second}, spitePool: {30, 5 * time.Second},
}

const (
	// keptPool is the pool of claims that are held for longer than a lease, so that a fault finds claims
	// that were made before it and remain after it.
	keptPool = "kept"
	// calmPool has a slot for each claim that neighbors make as they should, spitePool is for the
	// claims with which they try to hurt each other.
	calmPool, spitePool = "calm", "spite"
)

// kept says that a claim is held until the process rests, if its time is not over before.
func kept(slots map[string]int) bool { return slots[keptPool]+slots[calmPool] > 0 }

// load is what the jobs of one host ask for, from one process.
type load struct {
	*shift
	berth, socket, tcp, state, referee string
	id                                 string // of this process
	rate                               float64
	instances                          int
	seed                               uint64
	log                                hclog.Logger
	overSocket, overTCP                *http.Client
}

// loops is how many of each kind ask at a time.
var loops = []struct {
	via string
	n   int
}{{"go", 24}, {"http", 4}, {"tcp", 4}, {"exec", 1}, {"direct", 1}, {"step", 1}, {"kept-go", 2}, {"kept-http", 1}, {"kept-direct", 1}}

// crowdLoops is how many of each instance ask for slots of a pool that is always full, if
// there are several instances.
const crowdLoops = 2

func logger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Info, Output: os.Stderr})
}

func playLoad(args []string) error {
	l := &load{log: logger("load")}
	f := flag.NewFlagSet("load", flag.ContinueOnError)
	host := f.String("host", "", "name of the host")
	f.StringVar(&l.berth, "berth", "", "the binary of berth")
	f.StringVar(&l.socket, "socket", "", "socket of the sidecar")
	f.StringVar(&l.tcp, "tcp", "", "address of the sidecar")
	f.StringVar(&l.referee, "referee", "", "socket of the referee")
	f.StringVar(&l.state, "state", "", "state directory")
	f.Uint64Var(&l.seed, "seed", 0, "seed")
	f.Float64Var(&l.rate, "rate", 30, "claims a second while nothing fails")
	f.IntVar(&l.instances, "instances", 1, "instances of the Go API")
	if err := f.Parse(args); err != nil {
		return err
	}
	w, err := newWitness(l.referee, *host)
	if err != nil {
		return err
	}
	l.shift = newShift(w)
	l.id = fmt.Sprintf("%s-%x", *host, now()/1e6)
	l.overSocket, l.overTCP = overSocket(l.socket), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	l.begin()
	var all sync.WaitGroup
	cheap := 0
	for _, k := range loops {
		if k.via == "go" || k.via == "http" || k.via == "tcp" {
			cheap += k.n
		}
	}
	clients := make([]chan *instance.Client, l.instances)
	for i := range clients {
		clients[i] = make(chan *instance.Client)
		go l.open(i, clients[i])
	}
	start := func(part, i int, via string, think time.Duration) {
		r := rand.New(rand.NewPCG(l.seed, uint64(now())+uint64(1000*part+i)))
		all.Go(func() { l.loop(via, r, think, clients[i%len(clients)]) })
	}
	for part, k := range loops {
		for i := range k.n {
			start(part, i, k.via, time.Duration(float64(cheap)/l.rate*float64(time.Second)))
		}
	}
	if l.instances > 1 {
		for i := range crowdLoops * l.instances {
			start(len(loops), i, "crowd", 20*time.Millisecond)
		}
	}
	all.Wait()
	return nil
}

// open connects an instance of the Go API, again whenever the client can't go on. The first
// one and each second one after it resume what the process before them held; the others have
// another name in each process, and what they held ends with its leases.
func (l *load) open(i int, clients chan<- *instance.Client) {
	o := instance.Options{
		Endpoints: strings.Split(os.Getenv("BERTH_ENDPOINTS"), ","), Host: l.host, Instance: "load", StateDir: l.state,
		Role: "load", Logger: l.log,
	}
	if i > 0 {
		o.Instance = fmt.Sprintf("load-%d", i)
		o.Logger = l.log.Named(o.Instance)
	}
	if i%2 == 1 {
		o.Instance, o.StateDir = fmt.Sprintf("load-%d-%x", i, now()/1e6), ""
	}
	for {
		c, err := instance.Open(context.Background(), o)
		if err != nil {
			l.log.Warn("the Go API is not open", "error", err)
			pause(context.Background(), 200*time.Millisecond)
			continue
		}
		// No process would release the claims of the previous process.
		if held, err := c.Held(context.Background()); err == nil {
			for _, cl := range held {
				go func() { _ = cl.Release(context.Background()) }()
			}
		}
		for open := true; open; {
			select {
			case clients <- c:
			case <-c.Done():
				l.log.Warn("the client has ended", "error", c.Err())
				open = false
			}
		}
	}
}

// loop asks for one claim after the other.
func (l *load) loop(via string, r *rand.Rand, think time.Duration, clients <-chan *instance.Client) {
	ctx := context.Background()
	for {
		pause(ctx, time.Duration(r.Int64N(int64(2*think)+1)))
		var client *instance.Client
		if via == "go" || via == "crowd" || via == "kept-go" {
			client = <-clients
		}
		id := fmt.Sprintf("%s-%s-%d", l.id, via, l.enter())
		switch via {
		case "go":
			l.useGo(ctx, client, r, id, newWish(r))
		case "crowd":
			l.useGo(ctx, client, r, id, newCrowdWish(r))
		case "kept-go":
			l.useGo(ctx, client, r, id, newKeptWish(r))
		case "http":
			l.useHTTP(ctx, r, id, via, l.overSocket, "http://berth", newWish(r))
		case "kept-http":
			l.useHTTP(ctx, r, id, "http", l.overSocket, "http://berth", newKeptWish(r))
		case "tcp":
			l.useHTTP(ctx, r, id, via, l.overTCP, l.tcp, newWish(r))
		case "exec", "direct":
			l.useExec(r, id, via, newExecWish(r))
		case "kept-direct":
			l.useExec(r, id, "direct", newKeptWish(r))
		case "step":
			l.useSteps(ctx, r, id)
		}
		l.leave()
	}
}

// wish is what one claim asks for.
type wish struct {
	slots    map[string]int
	wait     time.Duration
	hold     time.Duration
	priority int
}

func newWish(r *rand.Rand) wish {
	w := wish{slots: map[string]int{}, wait: time.Hour, hold: time.Duration(1+r.IntN(25)) * time.Millisecond, priority: r.IntN(3)}
	for _, pool := range [][]string{{"db"}, {"api"}, {"db", "api"}, {"one"}, {"tmp"}, {"api"}, {"gpu"}, {"api", "one"}, {"bulk"}}[min(r.IntN(20), 8)] {
		w.slots[pool] = 1
		if pool == "db" || pool == "api" {
			w.slots[pool] += r.IntN(2)
		}
	}
	switch n := r.IntN(100); {
	case n < 5:
		w.wait = 0
	case n < 15:
		w.wait = time.Duration(r.IntN(2000)) * time.Millisecond
	}
	if r.IntN(100) < 2 { // long enough for leases to be renewed, and operators to revoke
		w.hold = time.Duration(1000+r.IntN(5000)) * time.Millisecond
	}
	return w
}

// newCrowdWish asks for slots of the pool that is always full, some with those of another pool.
func newCrowdWish(r *rand.Rand) wish {
	w := newWish(r)
	w.slots = map[string]int{"crowd": 1}
	switch r.IntN(20) {
	case 0, 1, 2:
		w.slots["crowd"] = 2
	case 3:
		w.slots["db"] = 1
	case 4:
		w.slots["api"] = 1
	}
	w.hold = max(w.hold, time.Duration(50+r.IntN(200))*time.Millisecond)
	return w
}

// newKeptWish asks for a claim that is held for longer than its lease, or until the load rests.
func newKeptWish(r *rand.Rand) wish {
	return wish{
		slots: map[string]int{keptPool: 1}, wait: time.Hour, hold: time.Duration(5000+r.IntN(20000)) * time.Millisecond,
	}
}

// newExecWish asks for a slot for a command.
func newExecWish(r *rand.Rand) wish {
	w := wish{slots: map[string]int{[]string{"gpu", "cpu"}[r.IntN(2)]: 1}, hold: time.Duration(20+r.IntN(200)) * time.Millisecond}
	if r.IntN(5) == 0 {
		w.hold = time.Duration(1+r.IntN(8)) * time.Second
	}
	return w
}

// expected are the refusals of a claim in times like these.
var expected = []string{
	"no_capacity", "claim_timeout", "claim_canceled", "claim_lost", "claim_revoked", "etcd_unavailable", "etcd_full",
	"stopping", "unavailable", "pool_not_found", "exceeds_limit", "state_unwritable", "slow_request",
}

func (l *load) answered(id, code string, err any) {
	if !slices.Contains(expected, code) {
		l.tell(record{What: "wrong", Job: id, Text: fmt.Sprintf("answer %s: %v", code, err)})
	}
}

// useGo claims through the Go API.
func (l *load) useGo(ctx context.Context, c *instance.Client, r *rand.Rand, id string, w wish) {
	if r.IntN(50) == 0 { // hangs up
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(30))*time.Millisecond)
		defer cancel()
	}
	asked := now()
	cl, err := c.Claim(ctx, w.slots, instance.WithID(id), instance.WithWait(w.wait), instance.WithPriority(w.priority))
	if err != nil {
		l.answered(id, instance.ErrorCode(err), err)
		pause(context.Background(), 50*time.Millisecond)
		return
	}
	l.hold(record{Job: id, Via: "go", Fence: cl.Fence(), Slots: w.slots, Asked: asked}, w.hold, cl.Context().Done(), func() bool {
		left, _ := cl.ValidFor()
		return left > 0
	})
	if err := cl.Release(context.Background()); err != nil {
		l.answered(id, instance.ErrorCode(err), err)
	}
}

// runUntilRest runs a command. If it ends with the load, it gets TERM when the load rests.
func (l *load) runUntilRest(cmd *exec.Cmd, endsWithLoad bool) (stopped bool, err error) {
	if err := cmd.Start(); err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var rests <-chan struct{}
	if endsWithLoad {
		ctx, cancel := l.working()
		defer cancel()
		rests = ctx.Done()
	}
	select {
	case err := <-ended:
		return false, err
	case <-rests:
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		return true, <-ended
	}
}

// useExec runs a job by berth exec, through the sidecar or straight on etcd.
func (l *load) useExec(r *rand.Rand, id, via string, w wish) {
	args := []string{"exec", "--id", id}
	for pool := range w.slots {
		args = append(args, "--pool", pool)
	}
	if via == "exec" {
		args = append(args, "--sidecar", "unix://"+l.socket)
	}
	self, err := os.Executable()
	if err != nil {
		l.tell(record{What: "wrong", Job: id, Text: err.Error()})
		return
	}
	args = append(args, "--", self, "job", "-via", via, "-host", l.host, "-referee", l.referee, "-for", w.hold.String())
	if kept(w.slots) {
		args = append(args, "-stubborn", "0")
	}
	cmd := exec.Command(l.berth, args...)
	out := &limited{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Minute
	stopped, err := l.runUntilRest(cmd, kept(w.slots))
	switch code := cmd.ProcessState.ExitCode(); code {
	// It was done; killed, by any process; without etcd or a sidecar; lost or revoked.
	case 0, -1, 128 + 9, 1, 75, 76:
	default:
		if stopped {
			break
		}
		l.tell(record{What: "wrong", Job: id, Text: fmt.Sprintf("berth exec ended with %d: %v: %s", code, err, out)})
	}
	pause(context.Background(), time.Duration(500+r.IntN(4000))*time.Millisecond) // processes are dear
}
