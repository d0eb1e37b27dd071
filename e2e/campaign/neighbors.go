//go:build linux

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// neighborUIDs are the users who share the socket of one sidecar, and try to hurt each other. No user of
// a machine has these numbers.
var neighborUIDs = [2]int{65001, 65002}

// neighborHost is the host whose sidecar they use. No member of etcd is lost with it.
const neighborHost = hostCount - 1

const (
	// recovers is how long after a fault the claims of neighbors may still be lost or late.
	recovers = 15 * time.Second
	// inTime is how long a sidecar may take to answer a user who does nothing wrong.
	inTime = 15 * time.Second
)

// neighborhood judges whether neighbors hurt each other. It does no I/O.
type neighborhood struct {
	leftOut   string // why there are no neighbors
	disturbed []stretch
	turns     []record
	counts    map[string]*turnCount     // of claims, by user
	sent      map[string]map[string]int // answers, by user and attack
	wrong     func(rule, text string)
}

// stretch is a time by the boot clock.
type stretch struct{ from, to int64 }

// turnCount counts the claims of a user.
type turnCount struct{ all, judged int }

func newNeighborhood(wrong func(rule, text string)) *neighborhood {
	return &neighborhood{counts: map[string]*turnCount{}, sent: map[string]map[string]int{}, wrong: wrong}
}

// neighborName is the name under which a neighbor reports.
func neighborName(uid int) string { return fmt.Sprintf("%s/%d", hostName(neighborHost), uid) }

// reaches says that the claims of a sidecar on a host may be lost or late because of the fault.
func (f fault) reaches(host int) bool {
	t := f.Kind.trait()
	here := f.Host == host || f.Kind.ofDispatcher()
	switch t.class {
	case etcdClass:
		return true
	case networkClass:
		return here
	case hostClass:
		return here && t.sidecar
	}
	return false
}

// disturb records that something other than the neighbors may have hurt them between two times.
func (n *neighborhood) disturb(from, to int64) {
	n.disturbed = append(n.disturbed, stretch{from, to + int64(recovers)})
}

// take notes what a neighbor reports: a turn of a claim that it made as it should, or what was
// answered to an attack.
func (n *neighborhood) take(r record) {
	if r.What == "turn" {
		n.turns = append(n.turns, r)
		return
	}
	key := r.Host + " " + r.Via
	if n.sent[key] == nil {
		n.sent[key] = map[string]int{}
	}
	for answer, k := range r.Answers {
		n.sent[key][answer] += k
	}
}

// ended notes that the sidecar has ended without a fault.
func (n *neighborhood) ended() {
	n.wrong("neighbor", "their sidecar has ended by itself: see its log")
}

// judge judges the turns of a phase, whose faults are over.
func (n *neighborhood) judge() {
	for _, r := range n.turns {
		c := n.counts[r.Host]
		if c == nil {
			c = &turnCount{}
			n.counts[r.Host] = c
		}
		c.all++
		if slices.ContainsFunc(n.disturbed, func(s stretch) bool { return s.from <= r.At && r.Asked <= s.to }) {
			continue
		}
		c.judged++
		if r.Text != "" {
			n.wrong("neighbor", fmt.Sprintf("claim %s of %s, made %s before: %s", r.Job, r.Host, time.Duration(r.At-r.Asked).Round(time.Millisecond), r.Text))
		}
	}
	n.turns = nil
}

// rows says what the neighbors did, and what was answered.
func (n *neighborhood) rows(row func(name string, value any)) {
	if n.leftOut != "" {
		row("neighbors", "left out: "+n.leftOut)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(n.counts)) {
		c := n.counts[name]
		row("claims of neighbor "+name, fmt.Sprintf("%d, %d of them while no fault could hurt them", c.all, c.judged))
	}
	for _, key := range slices.Sorted(maps.Keys(n.sent)) {
		var parts []string
		for _, answer := range slices.Sorted(maps.Keys(n.sent[key])) {
			parts = append(parts, fmt.Sprintf("%s: %d", answer, n.sent[key][answer]))
		}
		row("sent by "+key, strings.Join(parts, ", "))
	}
}

// ownPool is a pool that only one neighbor may change.
func ownPool(uid int) string { return fmt.Sprintf("own-%d", uid) }

// neighborSettings let both users claim and submit at the socket of a sidecar, and change a pool.
func neighborSettings() []string {
	var rules []string
	for _, uid := range neighborUIDs {
		rules = append(rules, fmt.Sprintf("user:%d view claim submit operate:%s", uid, ownPool(uid)))
	}
	return []string{
		"BERTH_SOCKET_MODE=0666", "BERTH_ROLES=" + strings.Join(rules, ","),
		// Low enough for the space of etcd, and to be reached within a phase.
		"BERTH_MAX_STORED_RUN_DATA=24MiB", "BERTH_MAX_UNFINISHED_RUNS=100",
	}
}

// asNeighbor is this program as one of the neighbors.
func asNeighbor(uid int, args ...string) (path []string, user *syscall.Credential) {
	return append([]string{"/proc/self/exe", "neighbor"}, args...), &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}

// errNotRoot says why there are no neighbors.
var errNotRoot = errors.New("only root can run processes of other users")

// admitNeighbors lets the users reach the sockets of the referee and of their sidecar. The error says
// why there can be none.
func admitNeighbors(dir, referee string) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	host := filepath.Join(dir, hostName(neighborHost))
	err := os.MkdirAll(host, 0o711)
	for path, mode := range map[string]os.FileMode{dir: 0o711, host: 0o711, referee: 0o666} {
		err = errors.Join(err, os.Chmod(path, mode))
	}
	if err != nil {
		return err
	}
	for _, uid := range neighborUIDs {
		path, user := asNeighbor(uid, "-referee", referee, "-try")
		cmd := exec.Command(path[0], path[1:]...)
		out := &limited{}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
		err := cmd.Run()
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPERM) { // root of a namespace of users
			return errNotRoot
		}
		if err != nil {
			return fmt.Errorf("no process of user %d reaches %s (as root, with a -dir that all users can enter): %w %s", uid, referee, err, strings.TrimSpace(out.String()))
		}
	}
	return nil
}

// startNeighbors starts both neighbors, if there can be any.
func (c *campaign) startNeighbors(ps *processes, referee string) {
	if c.referee.neighbors.leftOut != "" {
		return
	}
	h := c.hosts[neighborHost]
	for i, uid := range neighborUIDs {
		args, user := asNeighbor(uid, "-index", fmt.Sprint(i), "-socket", h.socket, "-tcp", h.tcp, "-referee", referee, "-seed", fmt.Sprint(c.seed))
		name := fmt.Sprintf("neighbor-%d", uid)
		p := ps.add(h.name, h.name+" "+name, filepath.Join(h.dir, name+".log"), args...)
		p.user = user
		p.want(true)
		c.referee.loadNames = append(c.referee.loadNames, neighborName(uid))
	}
}

// judgeNeighbors judges a phase.
func (c *campaign) judgeNeighbors() {
	r := c.referee
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.neighbors.leftOut == "" {
		for range c.hosts[neighborHost].sidecar.byItself() {
			r.neighbors.ended()
		}
		r.neighbors.judge()
	}
}
