//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// overSocket is a client of a sidecar's socket.
func overSocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

// answer is what the campaign reads of any answer of a sidecar.
type answer struct {
	status   int
	Code     string      `json:"code"`
	Detail   string      `json:"detail"`
	Fence    store.Fence `json:"fence"`
	ValidFor string      `json:"valid_for"`
	Status   any         `json:"status"` // of a run; of a problem it is the number
	Error    string      `json:"error"`  // of a run
}

func (a answer) String() string { return fmt.Sprintf("%d %s %s", a.status, a.Code, a.Detail) }

// validFor returns how long the claim is valid, in nanoseconds; 0 if the answer does not say.
func (a answer) validFor() int64 {
	d, _ := time.ParseDuration(a.ValidFor)
	return int64(d)
}

// lost says that there was no answer, or that it says nothing of the request.
func (a answer) lost() bool { return a.status == 0 || a.Code == "stopping" || a.Code == "unavailable" }

// call makes one request.
func call(ctx context.Context, c *http.Client, method, url string, body any) (answer, error) {
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return answer{}, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, &text)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode}
	if resp.StatusCode == http.StatusNoContent {
		return a, nil
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return answer{}, err // a part of an answer is none
	}
	return a, nil
}

// claimTTL is how long a claim over HTTP lives without a renewal.
const claimTTL = 6 * time.Second

// useHTTP claims over HTTP, renews while it holds, and asks again when an answer is lost.
func (l *load) useHTTP(ctx context.Context, r *rand.Rand, id, via string, c *http.Client, base string, w wish) {
	body := map[string]any{
		"id": id, "pools": w.slots, "wait": w.wait.String(), "ttl": claimTTL.String(), "priority": w.priority, "client_token": id,
	}
	if r.IntN(50) == 0 { // hangs up, and never asks again
		ctx, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(30))*time.Millisecond)
		defer cancel()
		_, _ = call(ctx, c, http.MethodPost, base+"/v1/claims", body)
		return
	}
	asked, sent := now(), now()
	a, _ := call(ctx, c, http.MethodPost, base+"/v1/claims", body)
	for a.lost() {
		pause(ctx, 200*time.Millisecond)
		sent = now()
		a, _ = call(ctx, c, http.MethodPost, base+"/v1/claims", body)
	}
	if a.status != http.StatusCreated && a.status != http.StatusOK {
		l.answered(id, a.Code, a)
		pause(ctx, 50*time.Millisecond)
		return
	}
	valid := sent + a.validFor()
	ended := make(chan struct{})
	renewing, stop := context.WithCancel(ctx)
	renewals := make(chan int64, 1)
	go func() {
		defer close(ended)
		for {
			pause(renewing, claimTTL/3)
			if renewing.Err() != nil {
				return
			}
			sent := now()
			short, cancel := context.WithTimeout(renewing, claimTTL/3)
			a, _ := call(short, c, http.MethodPost, base+"/v1/claims/"+id+"/renew", map[string]any{"fence": a.Fence})
			cancel()
			switch {
			case renewing.Err() != nil:
				return
			case a.status == http.StatusOK:
				renewals <- sent + a.validFor()
			case a.status == http.StatusConflict || a.status == http.StatusNotFound:
				return
			case a.status != 0:
				l.answered(id, a.Code, a)
			}
		}
	}()
	l.hold(record{Job: id, Via: via, Fence: a.Fence, Slots: w.slots, Asked: asked}, w.hold, ended, func() bool {
		at := now()
		select {
		case v := <-renewals:
			valid = max(valid, v)
		default:
		}
		return at < valid
	})
	stop()
	until(ctx, 200*time.Millisecond, func() bool {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		d, _ := call(short, c, http.MethodDelete, fmt.Sprintf("%s/v1/claims/%s?fence=%d", base, id, a.Fence), nil)
		if d.status >= 400 && d.status != http.StatusNotFound {
			l.answered(id, d.Code, d)
		}
		// Without etcd its lease ends it.
		return d.status == http.StatusNoContent || d.status == http.StatusNotFound || d.status == http.StatusConflict
	})
}

// useSteps submits a run with steps, and waits for its end.
func (l *load) useSteps(ctx context.Context, r *rand.Rand, id string) {
	self, err := os.Executable()
	if err != nil {
		l.tell(record{What: "wrong", Job: id, Text: err.Error()})
		return
	}
	job := func(slots string, lasts time.Duration) []string {
		return []string{self, "job", "-referee", l.referee, "-slots", slots, "-for", lasts.String()}
	}
	body := map[string]any{"id": id, "steps": []any{
		map[string]any{
			"name": "load", "items": map[string]int{"from": 1, "to": 3 + r.IntN(4)}, "pools": map[string]int{"cpu": 1},
			"retries": 100, "backoff": "200ms", "concurrency": 1 + r.IntN(4),
			"command": job("cpu=1", time.Duration(20+r.IntN(300))*time.Millisecond),
		},
		map[string]any{
			"name": "join", "needs": []string{"load"}, "pools": map[string]int{"gpu": 1, "db": 1}, "retries": 100, "backoff": "200ms",
			"command": job("gpu=1,db=1", time.Duration(20+r.IntN(3000))*time.Millisecond),
		},
	}}
	c, known := l.overSocket, false
	until(ctx, time.Second, func() bool {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if !known {
			a, _ := call(short, c, http.MethodPost, "http://berth/v1/runs", body)
			known = a.status == http.StatusCreated || a.status == http.StatusOK
			if a.status >= 400 {
				l.answered(id, a.Code, a)
			}
			return false
		}
		a, _ := call(short, c, http.MethodGet, "http://berth/v1/runs/"+id, nil)
		switch {
		case a.status == http.StatusNotFound, a.Status == "storing":
			known = false // a restore has undone it, or a part of its submission
		case a.Status == "failed" || a.Status == "canceled":
			l.tell(record{What: "wrong", Job: id, Text: fmt.Sprintf("the run is %s: %s", a.Status, a.Error)})
			return true
		}
		return a.Status == "succeeded"
	})
	pause(ctx, time.Duration(1000+r.IntN(6000))*time.Millisecond)
}
