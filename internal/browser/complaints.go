package browser

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/chromedp/cdproto/runtime"
)

// Complaints returns what went wrong in the tab so far, and forgets it.
func (b *Browser) Complaints() []string {
	b.t.Helper()
	// An answer comes after all that happened before the question.
	call(b, runtime.Evaluate, runtime.EvaluateParams{Expression: "0"})
	return b.seen.take()
}

// Expect takes complaints that contain one of the parts for expected, and waits
// until there is one for each part. Call it after what brings them.
func (b *Browser) Expect(parts ...string) {
	b.t.Helper()
	late := time.After(patience)
	for {
		next := b.seen.next()
		all := b.Complaints()
		rest, err := expected(all, parts)
		if err == nil {
			b.seen.blame(rest)
			return
		}
		b.seen.blame(all)
		select {
		case <-next:
		case <-late:
			b.t.Fatal(err)
		}
	}
}

// expected returns the complaints without those that contain one of the parts.
func expected(complaints, parts []string) ([]string, error) {
	came := make([]bool, len(parts))
	var rest, missing []string
	for _, c := range complaints {
		known := false
		for i, part := range parts {
			if strings.Contains(c, part) {
				came[i], known = true, true
			}
		}
		if !known {
			rest = append(rest, c)
		}
	}
	for i, part := range parts {
		if !came[i] {
			missing = append(missing, part)
		}
	}
	if len(missing) > 0 {
		return rest, fmt.Errorf("nothing in the tab went wrong with %q; it was %q", missing, complaints)
	}
	return rest, nil
}

// Allow lets the page ask another server too.
func (b *Browser) Allow(address string) {
	b.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	b.seen.hosts = append(b.seen.hosts, u.Host)
}

// judge fails the test for complaints that it did not expect. A test that was
// skipped did not come to expect them.
func (b *Browser) judge() {
	if b.t.Skipped() {
		return
	}
	if b.ctx.Err() != nil {
		b.t.Errorf("the browser is gone: %v", b.ctx.Err())
		return
	}
	if _, err := tell[int](b, `() => 0`); err != nil {
		b.t.Errorf("the tab does not answer: %v", err)
	}
	for _, c := range b.seen.take() {
		b.t.Errorf("in the browser: %s", c)
	}
}
