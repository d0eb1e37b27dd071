package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/pool"
)

const (
	// firstWaitLook is when a wait is worth a word: most end sooner.
	firstWaitLook = 300 * time.Millisecond
	// waitLook is how often it is looked at then. It is only for show.
	waitLook = time.Second
)

// waitTeller returns what tells people why exec waits; nil where nobody looks.
func waitTeller(c *cli.Context) func(pool.Reason) {
	if !c.Bool("verbose") && !isatty.IsTerminal(os.Stderr.Fd()) {
		return nil
	}
	return func(r pool.Reason) { say(c, "%s", waitText(r)) }
}

// waitText says why a claim waits.
func waitText(r pool.Reason) string {
	text := r.Text
	switch {
	case strings.Contains(text, " full"): // pool 'db' full (3/3 slots)
		text = "waiting for " + text
	case len(r.Pools) > 0: // pool 'db' is paused
		text = "waiting: " + text
	}
	if r.Position > 0 {
		text += fmt.Sprintf(", position %d of %d", r.Position, r.Line)
	}
	return text
}

// watchWait tells why a claim waits, whenever that has changed, until ctx ends.
func watchWait(ctx context.Context, h holder, id string, tell func(pool.Reason)) {
	timer := time.NewTimer(firstWaitLook)
	defer timer.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(waitLook)
		r, err := h.why(ctx, id)
		if err != nil || r.Text == "" {
			continue // not in line yet, or not any more
		}
		if text := waitText(r); text != last && ctx.Err() == nil {
			last = text
			tell(r)
		}
	}
}
