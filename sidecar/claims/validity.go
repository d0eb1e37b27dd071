package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// validity is the stored form of a [lease.Window]: it says how long a lease is valid unless it is
// renewed. An outdated validity is always safe, since it ends earlier.
type validity struct {
	Lease store.LeaseID `json:"lease,omitempty"`
	Sent  time.Duration `json:"sent,omitempty"` // of [lease.BootClock], in nanoseconds
	TTL   time.Duration `json:"ttl,omitempty"`  // in nanoseconds
}

// validityOf returns the validity of a claim, or the zero value if the claim is not valid now.
func validityOf(c *instance.Claim) validity {
	w, ok := c.Validity()
	if !ok {
		return validity{}
	}
	return validity{Lease: c.Lease, Sent: w.Sent, TTL: w.TTL}
}

// maxSent is the largest accepted time of the boot clock, so that sums do not overflow.
const maxSent = 1 << 61

// check returns an error for values that no lease can have.
func (v validity) check() error {
	switch {
	case v.Lease == 0:
		return errors.New("a validity names no lease")
	case v.Sent < -maxSent || v.Sent > maxSent:
		return fmt.Errorf("sent is %d: no boot clock has that time", v.Sent)
	case v.TTL < time.Second || v.TTL > pool.MaxLeaseDuration:
		return fmt.Errorf("ttl is %s: use 1s to %s", v.TTL, pool.MaxLeaseDuration)
	}
	return nil
}

// leasesFile is the file next to the bindings with the validity of their leases. Its name does not
// end in .json as the files of claims do.
const leasesFile = "leases"

// maxLeasesFile is the largest accepted file in bytes, far more than the leases of one host need.
const maxLeasesFile = 4 << 20

// leasesValue is the content of that file. Its times are on the boot clock, so they are only
// meaningful within the boot in which they were written.
type leasesValue struct {
	store.V
	Boot   string     `json:"boot"`
	Leases []validity `json:"leases"`
}

// decodeLeases reads the file.
func decodeLeases(data []byte) (leasesValue, error) {
	var v leasesValue
	if err := decodeStrict(string(data), &v); err != nil {
		return leasesValue{}, err
	}
	for _, l := range v.Leases {
		if err := l.check(); err != nil {
			return leasesValue{}, err
		}
	}
	return v, nil
}

// saveLeases replaces the file.
func (f Files) saveLeases(boot string, all []validity) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	return writeWhole(filepath.Join(f.dir, leasesFile), store.Encode(leasesValue{V: store.Now, Boot: boot, Leases: all}))
}

// save stores a holder's binding, and how long its claim is valid.
func (hs *Holders) save(h *Holder, bind Binding) error {
	if bind.unproven {
		return nil
	}
	valid := validity{}
	if bind.proc.PID != 0 {
		valid = validityOf(h.claim)
	}
	if err := hs.files.save(h.claim.ID, h.claim.Fence(), bind, valid); err != nil {
		return err
	}
	h.saved = true
	return nil
}

// Record stores the binding of a granted claim if it is bound to a process. Callers must do this
// before they answer the client, so that the next server can stop the process. If it fails, Record
// releases the claim, unless the holder stops the process itself.
func (hs *Holders) Record(h *Holder) error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.proc == nil || h.saved || h.gone || h.releasing {
		return nil
	}
	err := hs.save(h, h.bind)
	switch {
	case err == nil:
		return nil
	case h.bind.onlyKill:
		hs.log.Warn("the validity of a claim can't be recorded; its holder alone stops its process if this server is killed", keyClaim, h.claim.ID, keyError, err)
		return nil
	}
	hs.releaseAsync(h)
	return problem.New(problem.StateUnwritable, "claim %q is released: the process that it is bound to could not be recorded: %w", h.claim.ID, err)
}

// RecordLeases keeps the file with the validity of leases up to date until ctx ends. Callers run it
// in a separate goroutine, so that a slow disk does not delay the stopping of processes. While
// writes fail, the next server would use the last written file.
func (hs *Holders) RecordLeases(ctx context.Context) {
	if hs.files.dir == "" {
		return
	}
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var recorded []validity
	failed := false
	for {
		boot, all, ok := hs.leases()
		if ok && !slices.Equal(all, recorded) {
			err := hs.files.saveLeases(boot, all)
			if err == nil {
				recorded = all
			} else if !failed {
				hs.log.Warn("the validity of claims can't be recorded, trying again", keyFile, filepath.Join(hs.files.dir, leasesFile), keyError, err)
			}
			failed = err != nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// leases returns the validity of the leases of all claims with a process, in the order of the lease
// ids, and the boot id of these processes. It returns false once the claims are left to the next
// server.
func (hs *Holders) leases() (boot string, all []validity, ok bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.byID {
		if h.proc == nil {
			continue
		}
		if v := validityOf(h.claim); v.Lease != 0 {
			boot, all = h.bind.proc.Boot, append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b validity) int {
		return cmp.Or(cmp.Compare(a.Lease, b.Lease), cmp.Compare(b.Sent, a.Sent))
	})
	all = slices.CompactFunc(all, func(a, b validity) bool { return a.Lease == b.Lease })
	return boot, all, !hs.closed
}

// Orphans are the processes to which an earlier server bound claims. Until this server has taken
// the claims over, each process is stopped at the end of its recorded validity. After that, only
// the processes of lost claims are stopped.
type Orphans struct {
	clock   lease.Clock
	log     hclog.Logger
	files   Files
	procs   *proc.Watcher
	metrics *Metrics

	end  context.CancelFunc
	task sync.WaitGroup

	// Only the task uses the fields below.
	stopped  map[string]bool   // SIGTERM was sent, by claim and fence
	reported map[string]string // errors, by file
	lost     map[string]boundClaim
}

// WatchOrphans checks the orphans once, and then until stop is called.
func WatchOrphans(cfg Config) *Orphans {
	o := newOrphans(cfg, lease.BootClock())
	o.watch(o.check)
	return o
}

// watch calls check at once, and then repeatedly until stop is called.
func (o *Orphans) watch(check func()) {
	ctx, cancel := context.WithCancel(context.Background())
	o.end = cancel
	check()
	o.task.Go(func() {
		tick := time.NewTicker(checkEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				check()
			case <-ctx.Done():
				return
			}
		}
	})
}

func newOrphans(cfg Config, clock lease.Clock) *Orphans {
	return &Orphans{
		clock: clock, log: cfg.Log, files: cfg.files(), procs: cfg.Procs, metrics: cfg.Metrics,
		stopped: map[string]bool{}, reported: map[string]string{},
	}
}

// Stop ends the checks. It may be called more than once.
func (o *Orphans) Stop() {
	o.end()
	o.task.Wait()
}

// TakenOver records that this server has taken over the held claims. Every other claim with a file
// was lost while no server ran: its process is stopped like that of any lost claim, and its file is
// kept until the process is gone.
func (o *Orphans) TakenOver(claims []*instance.Claim) {
	o.Stop()
	if o.files.dir == "" {
		return
	}
	now := o.clock.Now()
	held := map[string]bool{}
	for _, c := range claims {
		held[c.ID] = true
	}
	o.lost = map[string]boundClaim{}
	leases := o.leases()
	o.files.Sweep(func(id string) bool {
		if held[id] {
			return true
		}
		c, err := o.files.read(id)
		if err != nil || c.bind.proc.PID == 0 {
			return false
		}
		c.valid = renewed(c, leases)
		c.valid.TTL = max(c.valid.TTL, pool.MinLeaseDuration)
		sent := now - lease.NewWindow(0, c.valid.TTL).StopAt() // such that the time to stop is now
		if c.valid.Lease == 0 || c.valid.Sent > sent {
			c.valid.Sent = sent
		}
		o.lost[id] = c
		return true
	})
	if len(o.lost) > 0 {
		o.watch(o.checkLost)
	}
}

// checkLost stops the processes of lost claims, and removes those that are gone. By then, the file
// may belong to a later claim.
func (o *Orphans) checkLost() {
	for id, c := range o.lost {
		if !o.judge(id, c, "a claim was lost while no sidecar ran, stopping its process") {
			continue
		}
		delete(o.lost, id)
		if f, err := o.files.read(id); err == nil && f.fence == c.fence {
			o.files.Remove(id)
		}
	}
}

// check stops the processes whose validity ends. It reads all files again, because another process
// may use the state directory by now, and its renewals count.
func (o *Orphans) check() {
	if o.files.dir == "" {
		return
	}
	ids, err := o.files.ids()
	if err != nil {
		o.report(o.files.dir, err)
		return
	}
	leases := o.leases()
	for _, id := range ids {
		c, err := o.files.read(id)
		if err != nil {
			o.report(o.files.path(id), err)
			continue
		}
		if c.bind.proc.PID == 0 || c.valid.Lease == 0 {
			continue
		}
		c.valid = renewed(c, leases)
		o.judge(id, c, "a claim has not been taken over in time, stopping its process")
	}
}

// renewed returns the validity of a claim after its last recorded renewal.
func renewed(c boundClaim, leases leasesValue) validity {
	valid := c.valid
	for _, l := range leases.Leases {
		if l.Lease == valid.Lease && leases.Boot == c.bind.proc.Boot && l.Sent > valid.Sent {
			valid = l
		}
	}
	return valid
}

// leases reads the file of the leases. Without it, the validity in the files of the bindings
// counts.
func (o *Orphans) leases() leasesValue {
	path := filepath.Join(o.files.dir, leasesFile)
	data, err := readSmall(path, maxLeasesFile)
	var v leasesValue
	if err == nil {
		v, err = decodeLeases(data)
	}
	if err != nil {
		o.report(path, err)
	}
	return v
}

// report logs an error about a file once. A missing file is not an error.
func (o *Orphans) report(path string, err error) {
	if errors.Is(err, fs.ErrNotExist) || o.reported[path] == err.Error() {
		return
	}
	o.reported[path] = err.Error()
	o.log.Error("processes that a state file is about may be stopped too early, or not at all",
		keyFile, path, keyError, err)
}

// judge stops the process of a claim if its validity ends: first with SIGTERM, and later with
// SIGKILL. It returns true once there is nothing left to stop. The reason why is logged with
// SIGTERM.
func (o *Orphans) judge(id string, c boundClaim, why string) (gone bool) {
	now, w := o.clock.Now(), lease.NewWindow(c.valid.Sent, c.valid.TTL)
	claim := fmt.Sprintf("%s %d", id, c.fence)
	sig := syscall.SIGKILL
	if w.Valid(now) {
		sig = syscall.SIGTERM
	}
	if now < w.StopAt() {
		return false
	}
	process, err := o.procs.Find(c.bind.proc)
	if errors.Is(err, proc.ErrNoProcess) {
		return true
	}
	if err == nil {
		defer process.Close()
		if sig == syscall.SIGTERM && (c.bind.onlyKill || o.stopped[claim]) {
			return false
		}
		if !o.stopped[claim] {
			o.log.Warn(why, keyClaim, id, keyPID, c.bind.proc.PID)
		}
		o.stopped[claim] = true
		if err = process.Signal(sig, c.bind.uid); err == nil {
			o.metrics.stopped.WithLabelValues(sig.String()).Inc()
		}
	}
	if err != nil {
		o.report(o.files.path(id), fmt.Errorf("process %d could not be stopped: %w", c.bind.proc.PID, err))
	}
	return errors.Is(err, proc.ErrOtherNamespace)
}
