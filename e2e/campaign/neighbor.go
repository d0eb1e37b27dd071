//go:build linux

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// neighbor is a user of a sidecar's socket, in one process. It makes claims as it should, and takes
// turns with the other user at sending what may hurt the other.
type neighbor struct {
	*shift
	index         int // in neighborUIDs
	socket, tcp   string
	calm, hostile *http.Client

	sending sync.Mutex // guards what follows
	answers map[string]map[string]int
	runs    []string // that were submitted
	large   string   // a run that can be read
}

// attackFor is how long an attacker's turn lasts: first one attacks, then the other, then both.
const attackFor = 15 * time.Second

// attacks says whether a neighbor attacks at a time of the boot clock.
func attacks(index int, at int64) bool {
	turn := int(at / int64(attackFor) % 3)
	return turn == index || turn == 2
}

// attackEnds is how long after an attack its sender may be refused for it.
const attackEnds = 8 * time.Second

// attacked says whether a neighbor was attacking between two times, or shortly before.
func attacked(index int, from, to int64) bool {
	for at := from - int64(attackEnds); at < to; at += int64(time.Second) {
		if attacks(index, at) {
			return true
		}
	}
	return attacks(index, to)
}

func playNeighbor(args []string) error {
	n := &neighbor{answers: map[string]map[string]int{}}
	f := flag.NewFlagSet("neighbor", flag.ContinueOnError)
	f.IntVar(&n.index, "index", 0, "which of the neighbors")
	f.StringVar(&n.socket, "socket", "", "socket of the sidecar")
	f.StringVar(&n.tcp, "tcp", "", "address of the sidecar")
	referee := f.String("referee", "", "socket of the referee")
	seed := f.Uint64("seed", 0, "seed")
	try := f.Bool("try", false, "only reach the referee")
	if err := f.Parse(args); err != nil {
		return err
	}
	w, err := newWitness(*referee, neighborName(neighborUIDs[n.index]))
	if err != nil || *try {
		return err
	}
	n.shift, n.calm, n.hostile = newShift(w), overSocket(n.socket), overSocket(n.socket)
	n.begin()
	go n.report()
	var all sync.WaitGroup
	for i := range calmLoops {
		r := rand.New(rand.NewPCG(*seed, uint64(now())+uint64(i)))
		all.Go(func() { n.behave(r) })
	}
	for i, a := range attackRows {
		r := rand.New(rand.NewPCG(*seed, uint64(now())+uint64(1000+i)))
		all.Go(func() { n.attack(a, r) })
	}
	all.Go(n.tidy)
	all.Wait()
	return nil
}

// calmLoops is how many claims each neighbor makes as it should, at a time.
const calmLoops = 2

// complaint says what is wrong with the answer to a request that a neighbor made as it should; nothing
// if it attacked and was refused for that.
func complaint(what string, a answer, attacker bool, want ...int) string {
	for _, status := range want {
		if a.status == status {
			return ""
		}
	}
	switch {
	case attacker && (a.status == 0 || a.status == http.StatusTooManyRequests):
		return ""
	case a.status == 0:
		return fmt.Sprintf("%s: no answer within %s", what, inTime)
	}
	return fmt.Sprintf("%s: %s", what, a)
}

// behave makes one claim after the other, holds and renews it, and releases it.
func (n *neighbor) behave(r *rand.Rand) {
	for {
		pause(context.Background(), time.Duration(100+r.IntN(400))*time.Millisecond)
		id := fmt.Sprintf("calm-%d-%x-%d", neighborUIDs[n.index], now()/1e6, n.enter())
		asked := now()
		wrong := n.turn(id, asked, r)
		n.tell(record{What: "turn", Job: id, Asked: asked, Text: wrong})
		n.leave()
	}
}

// ask makes a request that is not hostile.
func (n *neighbor) ask(method, path string, body any) answer {
	ctx, cancel := context.WithTimeout(context.Background(), inTime)
	defer cancel()
	a, err := call(ctx, n.calm, method, "http://berth"+path, body)
	if err != nil {
		a = answer{}
	}
	return a
}

// turn makes one claim, and returns what was wrong.
func (n *neighbor) turn(id string, asked int64, r *rand.Rand) (wrong string) {
	note := func(what string, a answer, want ...int) {
		if text := complaint(what, a, attacked(n.index, asked, now()), want...); wrong == "" {
			wrong = text
		}
	}
	slots := map[string]int{calmPool: 1}
	sent := now()
	a := n.ask(http.MethodPost, "/v1/claims", map[string]any{"id": id, "pools": slots, "wait": "1m", "run_id": "run-" + id})
	note("claim", a, http.StatusCreated, http.StatusOK)
	if a.status == http.StatusCreated || a.status == http.StatusOK {
		lasts := time.Duration(100+r.IntN(2500)) * time.Millisecond
		if r.IntN(7) == 0 {
			lasts = time.Duration(8000+r.IntN(6000)) * time.Millisecond // longer than its lease
		}
		n.keep(record{Job: id, Via: "neighbor", Fence: a.Fence, Slots: slots, Asked: asked}, sent+a.validFor(), lasts, note)
	}
	path := fmt.Sprintf("/v1/claims/%s?fence=%d", id, a.Fence)
	if a.Fence == 0 {
		path = "/v1/claims/" + id
	}
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answered := a.Fence == 0
	until(within, 200*time.Millisecond, func() bool {
		d := n.ask(http.MethodDelete, path, nil)
		if !answered { // after a release without an answer, the other may have the id
			answered = true
			note("release", d, http.StatusNoContent)
		}
		return d.status == http.StatusNoContent || d.status == http.StatusNotFound || d.status == http.StatusConflict || d.status == http.StatusForbidden
	})
	return wrong
}

// keep holds a claim, and renews it.
func (n *neighbor) keep(rec record, valid int64, lasts time.Duration, note func(string, answer, ...int)) {
	ctx, cancel := context.WithCancel(context.Background())
	type renewal struct {
		valid int64
		answer
	}
	renewals, ended := make(chan renewal, 1), make(chan struct{})
	var lost *answer
	go func() {
		defer close(ended)
		for {
			if pause(ctx, 2*time.Second); ctx.Err() != nil {
				return
			}
			sent := now()
			a := n.ask(http.MethodPost, "/v1/claims/"+rec.Job+"/renew", map[string]any{"fence": rec.Fence})
			if a.status != http.StatusOK && a.status != 0 && a.status != http.StatusTooManyRequests {
				lost = &a
				return
			}
			select {
			case renewals <- renewal{sent + a.validFor(), a}:
			case <-ctx.Done():
				return
			}
		}
	}()
	n.hold(rec, lasts, ended, func() bool {
		at := now()
		select {
		case r := <-renewals:
			note("renewal", r.answer, http.StatusOK)
			valid = max(valid, r.valid)
		default:
		}
		return at < valid
	})
	expired := now() >= valid
	cancel()
	<-ended
	switch {
	case lost != nil:
		note("renewal", *lost, http.StatusOK)
	case expired:
		note("renewal", answer{}, http.StatusOK) // there was none in time
	}
}

// report tells the referee what was answered to attacks.
func (n *neighbor) report() {
	for {
		pause(context.Background(), time.Second)
		n.sending.Lock()
		answers := n.answers
		n.answers = map[string]map[string]int{}
		n.sending.Unlock()
		for attack, counts := range answers {
			n.tell(record{What: "sent", Via: attack, Answers: counts})
		}
	}
}

// count notes one answer to an attack.
func (n *neighbor) count(attack, answer string) {
	n.sending.Lock()
	defer n.sending.Unlock()
	if n.answers[attack] == nil {
		n.answers[attack] = map[string]int{}
	}
	n.answers[attack][answer]++
}

// attack makes rounds of an attack while it is this neighbor's turn.
func (n *neighbor) attack(a attack, r *rand.Rand) {
	for {
		if pause(context.Background(), a.each); !attacks(n.index, now()) {
			continue
		}
		n.enter()
		if ctx, cancel := n.working(); ctx.Err() == nil {
			short, end := context.WithTimeout(ctx, attackFor)
			a.round(short, n, r)
			end()
			cancel()
		}
		n.leave()
	}
}

// tidy cancels the runs that were submitted when the process rests, so that none remains queued.
func (n *neighbor) tidy() {
	for {
		n.enter()
		ctx := context.Background()
		n.await(ctx, func(rests bool, active int) bool { return rests && active == 1 })
		n.sending.Lock()
		runs := n.runs
		n.runs = nil
		n.sending.Unlock()
		for _, id := range runs {
			until(ctx, 200*time.Millisecond, func() bool {
				a := n.ask(http.MethodPost, "/v1/runs/"+id+"/cancel", nil)
				return a.status != 0 && a.status != http.StatusServiceUnavailable && a.status != http.StatusTooManyRequests
			})
		}
		n.leave()
	}
}

// request is one of an attack.
type request struct {
	method, path, body string
	form               bool // the body is a page's form
}

// send sends a request of an attack, counts its answer and returns the beginning of its body.
func (n *neighbor) send(ctx context.Context, attack string, q request) (status int, text []byte) {
	ctx, cancel := context.WithTimeout(ctx, inTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, "http://berth"+q.path, strings.NewReader(q.body))
	if err != nil {
		n.count(attack, "not sent")
		return 0, nil
	}
	switch {
	case q.form:
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	case q.body != "":
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := n.hostile.Do(req)
	if err != nil {
		n.count(attack, "no answer")
		return 0, nil
	}
	defer resp.Body.Close()
	text, _ = io.ReadAll(io.LimitReader(resp.Body, 256<<10))
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<20))
	var problem struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(text, &problem) // pages and lists have no code
	n.count(attack, strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", problem.Code)))
	return resp.StatusCode, text
}

// submits notes the id of a run before it is submitted, so that it is canceled in the end.
func (n *neighbor) submits(id string) {
	n.sending.Lock()
	defer n.sending.Unlock()
	n.runs = append(n.runs, id)
}

// newID returns an id that nothing had.
func (n *neighbor) newID(what string, r *rand.Rand) string {
	return fmt.Sprintf("%s-%d-%x", what, neighborUIDs[n.index], r.Uint64())
}
