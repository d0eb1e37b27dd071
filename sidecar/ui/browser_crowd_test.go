package ui_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/instance"
)

// maxPage bounds what a page weighs, in bytes, and maxParts of how many elements it is
// made, however much there is to show.
const maxPage, maxParts = 250_000, 6000

// 500 pools and 10,000 queued runs: pages stay as small as they are with few.
func TestPagesStaySmallInACrowd(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	for i := range 500 {
		h.pool(fmt.Sprintf("pool-%03d", i), 1+i%40)
	}
	many := h.instance(instance.Options{Host: "etl-1"})
	h.pool("busy", 3000)
	for i := range 1100 {
		h.holds(many, fmt.Sprintf("claim-%04d", i), instance.Slots{"busy": 1})
	}
	runs := map[string][]byte{}
	for i := range 10_000 {
		runs[h.store.Keys.Run(fmt.Sprintf("run-%05d", i))] = queuedRecord(func(r *run.Record) {
			r.Spec.Name, r.Spec.Priority = fmt.Sprintf("Run number %d", i), i%7
			r.Spec.Tags = map[string]string{"tenant": fmt.Sprint("t", i%300), "env": "prod"}
		})
	}
	fill(t, h.store.Backend, runs)
	h.to("/queue")
	h.WaitText("#waiting caption", "of 10,000")
	for path, rows := range map[string]int{
		"/pools": 50, "/pools?page=11": 1, "/queue": 50, "/queue?q=number+99": 50, "/runs": 50,
	} {
		size := len(h.get(path).body)
		if size > maxPage {
			t.Errorf("%s has %d bytes, more than %d", path, size, maxPage)
		}
		h.to(path)
		if n := h.Count("main tbody tr, li.pool"); n != rows {
			t.Errorf("%s has %d rows, want %d", path, n, rows)
		}
		if n := h.Count("*"); n > maxParts {
			t.Errorf("%s has %d elements", path, n)
		}
		if strings.HasPrefix(path, "/queue") || path == "/runs" {
			continue
		}
		h.WantNoFindings()
	}
	// Holders are bounded, too, and what is left out is shown.
	h.to("/pools?q=busy&open=busy")
	h.wantText("#detail-busy", "100 holders are not shown")
	if n := h.Count("#holders-of-busy tbody tr"); n != 1000 {
		t.Errorf("%d holders are shown", n)
	}
	if size := len(h.get("/pools?q=busy&open=busy").body); size > 4*maxPage {
		t.Errorf("with 1000 holders the page has %d bytes", size)
	}
	h.to("/queue")
	h.wantText("#waiting caption", "1–50 of 10,000")
	h.Follow(`nav.pages a[rel=next]`)
	h.wantText("#waiting caption", "51–100 of 10,000")
	h.Follow(`nav.pages a[rel=next]`)
	h.Follow(`nav.pages a[rel=prev]`)
	h.wantText("#waiting caption", "51–100 of 10,000")
}
