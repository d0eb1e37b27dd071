package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Memory is the memory that a sidecar uses.
type Memory struct {
	Claims int `json:"claims"`
	// Idle is the resident memory without a claim, Holding with all claims, and Peak the maximum,
	// in megabytes (2^20 bytes).
	Idle    float64 `json:"idle_mb"`
	Holding float64 `json:"holding_mb"`
	Peak    float64 `json:"peak_mb"`
}

// measureMemory measures the memory of a sidecar that holds many claims.
func (r *Runner) measureMemory(ctx context.Context, row *Row) (err error) {
	if err := r.SetPools(ctx, row.pools(), row.Limit); err != nil {
		return err
	}
	d, err := r.openSidecars(ctx, row.Hosts, row.claim())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	pid := d.sidecars[0].PID()

	m := &Memory{Claims: r.HeldClaims}
	if m.Idle, _, err = r.rest(ctx, pid); err != nil {
		return err
	}
	if err := claimMany(ctx, d, row.Clients, m.Claims); err != nil {
		return err
	}
	if m.Holding, m.Peak, err = r.rest(ctx, pid); err != nil {
		return err
	}
	row.Memory = m
	return nil
}

// rest waits a while and then reads the memory of a process.
func (r *Runner) rest(ctx context.Context, pid int) (now, peak float64, err error) {
	if err := sleep(ctx, r.idle); err != nil {
		return 0, 0, err
	}
	return Resident(pid)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// claimMany claims n times, with so many clients, and releases nothing.
func claimMany(ctx context.Context, d Driver, clients, n int) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range clients {
		g.Go(func() error {
			for range Share(n, clients, i) {
				if _, err := d.Claim(ctx, i); err != nil {
					return fmt.Errorf("claim: %w", err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// Share returns how many of n fall to the i-th of several.
func Share(n, of, i int) int {
	s := n / of
	if i < n%of {
		s++
	}
	return s
}

// Resident returns the resident memory of a process, now and at its peak, in
// megabytes. It is known on Linux only.
func Resident(pid int) (now, peak float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	defer f.Close()
	values := map[string]float64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		if kb, ok := strings.CutSuffix(strings.TrimSpace(value), " kB"); ok {
			n, _ := strconv.ParseFloat(kb, 64)
			values[name] = n / 1024
		}
	}
	now, peak = values["VmRSS"], values["VmHWM"]
	if now == 0 {
		return 0, 0, fmt.Errorf("memory of process %d: the system does not report it", pid)
	}
	return now, peak, nil
}
