//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// progress tells on stderr how far it has come.
func (c *campaign) progress(n int) {
	r := c.referee
	r.mu.Lock()
	defer r.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	faults := 0
	for _, k := range c.injected {
		faults += k
	}
	fmt.Fprintf(os.Stderr, "%8s phase %d: %d claims, %d faults, served after %s, %d violations\n",
		time.Since(c.begun).Round(time.Second), n, r.claims, faults, c.served[len(c.served)-1].Round(100*time.Millisecond), len(r.violations))
}

// report writes what was done and what was found.
func (c *campaign) report(to io.Writer, interrupted bool) {
	r := c.referee
	r.collect()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.flush(); err != nil {
		r.wrong("campaign", err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	defer w.Flush()
	row := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	row("seed", c.seed)
	row("duration", time.Since(c.begun).Round(time.Second))
	row("phases", len(c.served))
	row("instances of the Go API", c.instances*hostCount)
	row("claims granted", r.claims)
	row("revisions judged", r.revisions)
	for _, via := range []string{"go", "http", "tcp", "exec", "direct", "step"} {
		row("jobs by "+via, r.stays.begun[via])
	}
	if len(c.served) > 0 {
		row("served after, at most", slices.Max(c.served).Round(100*time.Millisecond))
	}
	faults, kinds := 0, 0
	for _, t := range traits {
		n, missing := c.injected[t.kind], c.missing[t.kind]
		if n > 0 {
			faults, kinds = faults+n, kinds+1
		}
		switch {
		case missing > 0:
			row("fault "+string(t.kind), fmt.Sprintf("%d, not applicable %d", n, missing))
		case n > 0:
			row("fault "+string(t.kind), n)
		}
	}
	row("faults", fmt.Sprintf("%d, of %d kinds", faults, kinds))
	for _, k := range slices.Sorted(maps.Keys(c.moves.after)) {
		row("moved again after "+string(k), c.moves.after[k])
	}
	if c.moves.longest > 0 {
		row("stood still, at most", c.moves.longest.Round(10*time.Millisecond))
	}
	r.neighbors.rows(row)
	for _, kind := range slices.Sorted(maps.Keys(c.keys)) {
		row("keys left of "+kind, c.keys[kind])
	}
	row("data of etcd, at most", fmt.Sprintf("%d of %d MiB", c.cluster.largest>>20, quotaBytes>>20))
	row("violations", len(r.violations))
	for _, v := range r.violations[:min(len(r.violations), 20)] {
		fmt.Fprintf(w, "  %s\n", v)
	}
	if interrupted {
		row("interrupted", "yes")
	}
	row("logs", c.dir)
}
