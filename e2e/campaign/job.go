//go:build linux

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthhq/berth/internal/store"
	"golang.org/x/sys/unix"
)

// now returns the time of the boot clock, which can't be set.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // Linux has it
	}
	return t.Nano()
}

// witness is a connection to the referee. A record is written with one call, so that a
// process that is killed leaves whole ones.
type witness struct {
	host string
	conn net.Conn
	mu   sync.Mutex
}

func newWitness(socket, host string) (*witness, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("referee: %w", err)
	}
	return &witness{host: host, conn: conn}, nil
}

// tell reports to the referee. Nothing is left to do without it.
func (w *witness) tell(r record) {
	if r.At == 0 {
		r.At = now()
	}
	r.Host, r.PID, r.PPID = w.host, os.Getpid(), os.Getppid()
	text, err := json.Marshal(r)
	if err == nil {
		w.mu.Lock()
		_, err = w.conn.Write(append(text, '\n'))
		w.mu.Unlock()
	}
	if err != nil {
		os.Exit(1)
	}
}

// beatEach is how often a job reports while it holds its slots.
const beatEach = 50 * time.Millisecond

// playJob is the command of an exec or of a step: it reports that it is there until its
// time is over or it gets a signal to stop. A stubborn one takes no notice of that.
func playJob(args []string) error {
	f := flag.NewFlagSet("job", flag.ContinueOnError)
	lasts := f.Duration("for", 0, "how long it works")
	referee := f.String("referee", "", "socket of the referee")
	host := f.String("host", "", "host that it was started on, if known")
	via := f.String("via", "step", "how it was started")
	slots := f.String("slots", os.Getenv("BERTH_POOLS"), "slots that it has")
	stubborn := f.Float64("stubborn", 0.2, "chance not to stop on a signal")
	if err := f.Parse(args); err != nil {
		return err
	}
	w, err := newWitness(*referee, *host)
	if err != nil {
		return err
	}
	fence, err := strconv.ParseInt(os.Getenv("BERTH_FENCE"), 10, 64)
	if err != nil {
		return fmt.Errorf("BERTH_FENCE: %w", err)
	}
	r := record{What: "begin", Job: os.Getenv("BERTH_CLAIM_ID"), Via: *via, Fence: store.Fence(fence), Slots: map[string]int{}}
	for _, part := range strings.Split(*slots, ",") {
		pool, n, _ := strings.Cut(part, "=")
		if r.Slots[pool], err = strconv.Atoi(n); err != nil {
			return fmt.Errorf("slots %q: %w", *slots, err)
		}
	}
	if run := os.Getenv("BERTH_RUN_ID"); run != "" && *via == "step" {
		r.Item = fmt.Sprintf("%s/%s/%s", run, os.Getenv("BERTH_STEP"), os.Getenv("BERTH_INDEX"))
		r.Job = fmt.Sprintf("%s#%d", r.Item, fence)
	}
	term := make(chan os.Signal, 1)
	if rand.Float64() < *stubborn {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(term, syscall.SIGTERM)
	}
	r.Asked = now() - int64(10*time.Second) // its slots were granted by then
	w.tell(r)
	beat := time.NewTicker(beatEach)
	defer beat.Stop()
	for end := time.After(*lasts); ; {
		select {
		case <-beat.C:
			w.tell(record{What: "beat", Job: r.Job})
		case <-term:
			w.tell(record{What: "end", Job: r.Job})
			return fmt.Errorf("signaled to stop")
		case <-end:
			w.tell(record{What: "end", Job: r.Job})
			return nil
		}
	}
}
