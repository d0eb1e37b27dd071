//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthhq/berth/lease"
)

// journal is a file that jobs write to, each line with the machine's own clock:
// what they did is judged by it, and by nothing that berth says.
type journal struct{ path string }

// entry is a line of a journal.
type entry struct {
	At    time.Duration // on the boot clock
	Job   string
	What  string // start, beat, term, end
	PID   int
	Fence int64
}

// write appends a line; a line that is short is written whole.
func (j journal) write(job, what string) error {
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	fence, _ := strconv.ParseInt(os.Getenv("BERTH_FENCE"), 10, 64)
	line, err := json.Marshal(entry{At: lease.BootClock().Now(), Job: job, What: what, PID: os.Getpid(), Fence: fence})
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	return err
}

// read returns all lines so far.
func (j journal) read(t testing.TB) []entry {
	t.Helper()
	text, err := os.ReadFile(j.path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []entry
	for line := range strings.Lines(string(text)) {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil { // the last one may be half written
			all = append(all, e)
		}
	}
	return all
}

// wait waits until a job has done something, and returns the line.
func (j journal) wait(t testing.TB, job, what string) entry {
	t.Helper()
	var found entry
	for begin := time.Now(); time.Since(begin) < deadline; pause(t.Context(), 10*time.Millisecond) {
		for _, e := range j.read(t) {
			if e.Job == job && e.What == what {
				return e
			}
		}
	}
	t.Fatalf("job %s has not come to %q within %s", job, what, deadline)
	return found
}

// stay is the time in which a job was surely there: from its first line to its
// last.
type stay struct {
	job      string
	from, to time.Duration
	ended    bool // it came to its end by itself
	signaled bool // it was signaled to stop
	pids     map[int]bool
}

func (j journal) stays(t testing.TB) map[string]*stay {
	t.Helper()
	all := map[string]*stay{}
	for _, e := range j.read(t) {
		s := all[e.Job]
		if s == nil {
			s = &stay{job: e.Job, from: e.At, pids: map[int]bool{}}
			all[e.Job] = s
		}
		s.from, s.to = min(s.from, e.At), max(s.to, e.At)
		s.ended = s.ended || e.What == "end"
		s.signaled = s.signaled || e.What == "term"
		s.pids[e.PID] = true
	}
	return all
}

// together returns the most jobs that were there at one time.
func together(stays map[string]*stay) (most int) {
	type edge struct {
		at time.Duration
		by int
	}
	var edges []edge
	for _, s := range stays {
		edges = append(edges, edge{s.from, 1}, edge{s.to, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.by - b.by
	})
	n := 0
	for _, e := range edges {
		n += e.by
		most = max(most, n)
	}
	return most
}

// jobPart is what a job needs to know.
type jobPart struct {
	Journal, Name string
	// For is how long it works; until its stop file is there if 0.
	For  time.Duration
	Stop string
	// Stubborn goes on when it is signaled to stop.
	Stubborn bool
}

// env is the environment in which the test binary is that job.
func (p jobPart) env() []string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return append(os.Environ(), roleVar+"=job", partVar+"="+string(text))
}

// beatEvery is how often a job writes that it is still there.
const beatEvery = 10 * time.Millisecond

// playJob works, and writes down that it does.
func playJob(part []byte, _ io.Reader, _ func(report)) error {
	var p jobPart
	if err := json.Unmarshal(part, &p); err != nil {
		return err
	}
	j := journal{p.Journal}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if err := j.write(p.Name, "start"); err != nil {
		return err
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for begin := time.Now(); p.works(begin); {
		select {
		case <-beat.C:
			if err := j.write(p.Name, "beat"); err != nil {
				return err
			}
		case <-term:
			if err := j.write(p.Name, "term"); err != nil || !p.Stubborn {
				return fmt.Errorf("signaled to stop: %w", err)
			}
		}
	}
	return j.write(p.Name, "end")
}

func (p *jobPart) works(begin time.Time) bool {
	if p.For > 0 {
		return time.Since(begin) < p.For
	}
	_, err := os.Stat(p.Stop)
	return err != nil
}

func TestTogetherCountsThoseThatAreThereAtOneTime(t *testing.T) {
	stays := map[string]*stay{
		"a": {from: 0, to: 10}, "b": {from: 5, to: 7}, "c": {from: 7, to: 9}, "d": {from: 8, to: 12}, "e": {from: 20, to: 30},
	}
	if n := together(stays); n != 3 {
		t.Errorf("%d at one time", n)
	}
}
