//go:build linux

package claims

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// orphanage has orphans on a clock that is set.
type orphanage struct {
	*Orphans
	t     *testing.T
	clock *stillClock
	log   *bytes.Buffer
}

func newOrphanage(t *testing.T) *orphanage {
	t.Helper()
	log := new(bytes.Buffer)
	cfg := Config{
		Log: hclog.New(&hclog.LoggerOptions{Output: log}), StateDir: t.TempDir(), Instance: "sidecar",
		Procs: newWatcher(t), Metrics: NewMetrics(nil),
	}
	clock := &stillClock{}
	return &orphanage{Orphans: newOrphans(cfg, clock), t: t, clock: clock, log: log}
}

// orphan is a process that a claim was bound to.
type orphan struct {
	t   *testing.T
	cmd *exec.Cmd
}

func newOrphan(t *testing.T) *orphan {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return &orphan{t: t, cmd: cmd}
}

// bind starts a process and records a claim that is bound to it.
func (o *orphanage) bind(id string, valid validity, change func(*Binding)) *orphan {
	o.t.Helper()
	x := newOrphan(o.t)
	process, err := o.procs.Open(x.cmd.Process.Pid)
	if err != nil {
		o.t.Fatal(err)
	}
	b := Binding{proc: process.ID()}
	process.Close()
	if change != nil {
		change(&b)
	}
	if err := o.files.save(id, 7, b, valid); err != nil {
		o.t.Fatal(err)
	}
	return x
}

// endedBy waits for the end and wants a signal to have brought it.
func (x *orphan) endedBy(sig syscall.Signal) {
	x.t.Helper()
	kill := time.AfterFunc(time.Minute, func() { _ = x.cmd.Process.Kill() }) // or it would sleep on
	defer kill.Stop()
	_ = x.cmd.Wait() // the state tells
	if got := x.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != sig {
		x.t.Errorf("ended by %s, want %s", got, sig)
	}
}

// unharmed ends the process with a signal of the test's own, and wants no other to have been
// sent to it before.
func (x *orphan) unharmed() {
	x.t.Helper()
	if err := x.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		x.t.Error(err)
	}
	x.endedBy(syscall.SIGUSR1)
}

// boot is that of processes here.
func (o *orphanage) boot() string {
	self, err := proc.Self()
	if err != nil {
		o.t.Fatal(err)
	}
	return self.Boot
}

const orphanTTL = time.Minute

func validFrom(sent time.Duration) validity {
	return validity{Lease: 9, Sent: sent, TTL: orphanTTL}
}

func TestAnOrphanIsStoppedAndKilledInTime(t *testing.T) {
	o := newOrphanage(t)
	w := lease.NewWindow(0, orphanTTL)
	stubborn := o.bind("stubborn", validFrom(0), func(b *Binding) { b.onlyKill = true })
	plain := o.bind("plain", validFrom(0), nil)
	o.clock.now = w.StopAt() - 1
	o.check()
	if len(o.stopped) > 0 {
		t.Errorf("stopped too early: %v", o.stopped)
	}
	o.clock.now = w.StopAt()
	o.check()
	plain.endedBy(syscall.SIGTERM)
	o.clock.now = w.Until() - 1
	o.check()
	if len(o.stopped) != 1 {
		t.Errorf("stopped: %v", o.stopped)
	}
	o.clock.now = w.Until()
	o.check()
	stubborn.endedBy(syscall.SIGKILL)
	o.check() // both are gone
	if o.log.Len() == 0 || strings.Contains(o.log.String(), "[ERROR]") {
		t.Errorf("log: %s", o.log)
	}
}

func TestTheProcessOfALostClaimIsStoppedAndKilledInTime(t *testing.T) {
	o := newOrphanage(t)
	plain := o.bind("plain", validFrom(0), nil)
	stubborn := o.bind("stubborn", validFrom(0), func(b *Binding) { b.onlyKill = true })
	unknown := o.bind("unknown", validity{}, nil) // of a sidecar that recorded no validity
	expired := o.bind("expired", validFrom(-time.Hour), nil)
	elsewhere := o.bind("elsewhere", validFrom(0), func(b *Binding) { b.proc.Namespace++ })
	held := o.bind("held", validFrom(0), nil)
	o.end = func() {}
	o.TakenOver([]*instance.Claim{{Claim: &pool.Claim{ID: "held"}}})
	defer o.Stop()
	plain.endedBy(syscall.SIGTERM)
	unknown.endedBy(syscall.SIGTERM)
	expired.endedBy(syscall.SIGKILL)
	o.Stop() // the clock is set here
	o.clock.now = lease.StopGrace(orphanTTL) - 1
	o.checkLost()
	if err := stubborn.cmd.Process.Signal(syscall.Signal(0)); err != nil || len(o.lost) != 1 {
		t.Errorf("the one that is only killed: %v; lost: %v", err, o.lost)
	}
	o.clock.now++
	o.checkLost()
	stubborn.endedBy(syscall.SIGKILL)
	if err := o.files.save("stubborn", 8, byLease, validity{}); err != nil { // a later claim
		t.Fatal(err)
	}
	o.checkLost()
	left := map[string]bool{}
	o.files.Sweep(func(id string) bool { left[id] = true; return true })
	if want := map[string]bool{"held": true, "stubborn": true}; !maps.Equal(left, want) || len(o.lost) > 0 {
		t.Errorf("files of %v are left, want %v; lost: %v", left, want, o.lost)
	}
	held.unharmed()
	elsewhere.unharmed()
}

func TestNoProcessIsStoppedThatNoClaimIsKnownToBeBoundTo(t *testing.T) {
	o := newOrphanage(t)
	all := []*orphan{
		o.bind("later", validFrom(0), func(b *Binding) { b.proc.Start -= 100 }),
		o.bind("boot", validFrom(0), func(b *Binding) { b.proc.Boot = "earlier" }),
		o.bind("space", validFrom(0), func(b *Binding) { b.proc.Namespace++ }),
		o.bind("unknown", validity{}, nil), // of a sidecar that recorded no validity
	}
	released := o.bind("released", validFrom(0), nil)
	o.files.Remove("released")
	o.clock.now = time.Hour
	o.check()
	for _, x := range append(all, released) {
		x.unharmed()
	}
}

func TestTheLastRecordedRenewalOfALeaseCounts(t *testing.T) {
	o := newOrphanage(t)
	x := o.bind("mine", validFrom(0), nil)
	if err := o.files.saveLeases(o.boot(), []validity{validFrom(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	o.clock.now = time.Hour
	o.check()
	if len(o.stopped) > 0 {
		t.Error("the renewal was passed over")
	}
	o.clock.now += orphanTTL
	o.check()
	x.endedBy(syscall.SIGKILL)

	late := o.bind("late", validFrom(0), nil)
	if err := o.files.saveLeases("earlier", []validity{validFrom(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	o.clock.now = time.Hour
	o.check()
	late.endedBy(syscall.SIGKILL) // that of an earlier boot tells nothing
}

func TestAStateFileOfAnotherVersionIsNamedOnceAndTheBindingsCount(t *testing.T) {
	o := newOrphanage(t)
	x := o.bind("mine", validFrom(0), nil)
	path := filepath.Join(o.files.dir, leasesFile)
	other := filepath.Join(o.files.dir, "other.json")
	for _, name := range []string{path, other} {
		if err := os.WriteFile(name, []byte(`{"v":2,"news":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.check()
	o.check()
	for _, name := range []string{path, other} {
		if log := o.log.String(); strings.Count(log, name) != 1 || !strings.Contains(log, "it has version 2") {
			t.Errorf("log: %s", log)
		}
	}
	o.clock.now = orphanTTL
	o.check()
	x.endedBy(syscall.SIGKILL)
}
