package pool

import (
	"runtime"
	"time"
)

const (
	// gatherRoom is how much can be asked for before whoever asks has to wait.
	gatherRoom = 256
	// gatherQuiet is after how many turns of everybody else without a new wish a
	// batch of several is sent: some 20 µs where nothing else runs, against the
	// 300 µs or more that a batch takes.
	gatherQuiet = 128
	// gatherMost bounds the time that a batch waits for company.
	gatherMost = 150 * time.Microsecond
)

// gather collects what is asked of a core, so that it shares one transaction.
//
// Those whom the last batch answered have their next wish ready in a moment. If
// that batch was of several, the next waits while they keep coming: else half of
// them would miss it, and each half would wait for the other's. A batch of one is
// not followed by any wait, so a lone client never has one.
type gather struct {
	ops    chan func(*core, time.Time)
	urgent *urgent

	asked   bool // something was asked since the last batch was sent
	company bool // that batch was of several
}

// all takes what there is, and waits for company if it is worth it.
func (g *gather) all(c *core) {
	g.take(c)
	if !g.asked || !g.company || c.calling {
		return
	}
	end := time.Now().Add(gatherMost)
	for quiet := 0; quiet < gatherQuiet && time.Now().Before(end); quiet++ {
		runtime.Gosched()
		if g.take(c) {
			quiet = 0
		}
	}
}

// take takes what is there now, and tells whether there was anything.
func (g *gather) take(c *core) (any bool) {
	for range gatherRoom {
		g.urgent.run(c)
		select {
		case op := <-g.ops:
			g.do(c, op)
			any = true
		default:
			return any
		}
	}
	return any
}

// do does one thing that was asked.
func (g *gather) do(c *core, op func(*core, time.Time)) {
	g.asked = true
	op(c, time.Now())
}

// sent notes what became of all that was gathered; b is nil if the door is being
// closed.
func (g *gather) sent(b *batch) {
	g.asked = false
	g.company = b != nil && b.size() > 1
}
