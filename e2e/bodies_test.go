//go:build linux

package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

const (
	// bodiesAtOnce send a body of 16 MiB at the same time.
	bodiesAtOnce = 100
	// bodiesMemory bounds the memory of the sidecar that gets them, in bytes.
	bodiesMemory = 300 << 20
	longestBody  = 16<<20 - 8
)

// filled repeats a part between a beginning and an end, up to the length of the longest body.
func filled(head, part, tail string) string {
	n := (longestBody - len(head) - len(tail)) / len(part)
	return head + strings.TrimSuffix(strings.Repeat(part, n), ",") + tail
}

// largeBodies are runs that cost memory in different ways, with the status of those that are
// not refused for want of memory.
func largeBodies() map[string]struct {
	body   string
	status int
} {
	const created, tooLarge, malformed = http.StatusCreated, http.StatusRequestEntityTooLarge, http.StatusBadRequest
	step := func(fields string) string { return `{"id":"r","steps":[{"name":"a","external":true,` + fields }
	items := strings.Builder{}
	items.WriteString(step(`"items":[`))
	for i := range 100_000 {
		if i > 0 {
			items.WriteByte(',')
		}
		fmt.Fprintf(&items, `{"file":"s3://bucket/%0120d","n":%d}`, i, i)
	}
	items.WriteString(`]}]}`)
	many := func(n int, fields func(i int) string) string {
		steps := make([]string, n)
		for i := range steps {
			steps[i] = fmt.Sprintf(`{"name":"s%d",%s}`, i, fields(i))
		}
		return `{"id":"r","steps":[` + strings.Join(steps, ",") + `]}`
	}
	zeros := "[[" + strings.TrimSuffix(strings.Repeat("0,", 32_000), ",") + "]]"
	return map[string]struct {
		body   string
		status int
	}{
		"many items":         {items.String(), created},
		"inputs of numbers":  {many(250, func(int) string { return `"external":true,"input":` + zeros }), created},
		"long templates":     {many(250, func(int) string { return `"shell":"` + strings.Repeat("{{.index}}", 6_000) + `"` }), created},
		"much work":          {many(1, func(int) string { return `"items":{"from":1,"to":40},"shell":"` + strings.Repeat("x", 60_000) + `"` }), created},
		"deep nesting":       {filled(step(`"items":[`), "[", ""), tooLarge},
		"tiny items":         {filled(step(`"items":[`), "0,", `]}]}`), tooLarge},
		"tiny steps":         {filled(`{"id":"r","steps":[`, "{},", `]}`), tooLarge},
		"tiny arguments":     {filled(`{"id":"r","steps":[{"name":"a","command":[`, `"",`, `]}]}`), tooLarge},
		"one long text":      {filled(step(`"shell":"`), "x", `"}]}`), tooLarge},
		"space":              {filled(step(`"items":[`), " ", `]}]}`), tooLarge},
		"junk behind it":     {items.String() + "]", malformed},
		"junk at its end":    {filled(step(`"items":[`), `{"a":"`+strings.Repeat("x", 100)+`"},`, `}`), malformed},
		"names of variables": {filled(step(`"env":{`), `"a":"",`, `}}]}`), tooLarge},
	}
}

// TestLargeBodiesTogetherTakeLittleMemory sends bodies of all kinds to a sidecar. Some are
// accepted, those for which it has no memory are refused, and claims are granted meanwhile.
func TestLargeBodiesTogetherTakeLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends 20 GB")
	}
	etcd := embedtest.New(t).Endpoint()
	berthCommand(t, etcd, nil, "pools", "set", "db", "1000").succeeds()
	all := largeBodies()
	for i, what := range slices.Sorted(maps.Keys(all)) {
		t.Run(what, func(t *testing.T) {
			s := startSidecar(t, etcd, fmt.Sprintf("host%d", i), shortDir(t))
			client := &http.Client{Transport: overUnix(s.Socket)}
			before := memoryPeak(t, s.cmd.Process.Pid)
			body := strings.Replace(all[what].body, `"id":"r"`, fmt.Sprintf(`"id":"r%d"`, i), 1)
			var (
				wg   sync.WaitGroup
				mu   sync.Mutex
				seen = map[int]int{}
			)
			begun := time.Now()
			for range bodiesAtOnce {
				wg.Go(func() {
					status := post(t, client, "/v1/runs", body)
					mu.Lock()
					defer mu.Unlock()
					seen[status]++
				})
			}
			for n := range 10 {
				// A claim whose first answer was lost in etcd is found again: 200.
				if status := post(t, client, "/v1/claims", fmt.Sprintf(`{"id":"c%d-%d","pools":{"db":1}}`, i, n)); status != http.StatusCreated && status != http.StatusOK {
					t.Errorf("a claim was answered with %d meanwhile", status)
				}
			}
			wg.Wait()
			for status := range seen {
				if status != all[what].status && status != http.StatusTooManyRequests && (all[what].status != http.StatusCreated || status != http.StatusOK) {
					t.Errorf("%d answers are %d, want %d, or %d for want of memory", seen[status], status, all[what].status, http.StatusTooManyRequests)
				}
			}
			if seen[all[what].status] == 0 && (all[what].status != http.StatusCreated || seen[http.StatusOK] == 0) {
				t.Errorf("no answer is %d: %v", all[what].status, seen)
			}
			peak := memoryPeak(t, s.cmd.Process.Pid)
			t.Logf("%d bytes: %v within %s; %d MB of memory, %d MB before", len(body), seen, time.Since(begun).Round(time.Millisecond), peak>>20, before>>20)
			if peak > bodiesMemory {
				t.Errorf("the sidecar has had %d MB of memory, allowed are %d", peak>>20, bodiesMemory>>20)
			}
		})
	}
}

// post sends a body, and returns the status of the response. While etcd is too slow for a
// request, which only the load of the machine decides, it sends it again, as the message asks.
func post(t testing.TB, client *http.Client, path, body string) int {
	for {
		status, text, header := postOnce(t, client, path, body)
		switch busy := status == http.StatusTooManyRequests; {
		case status == http.StatusServiceUnavailable && strings.Contains(text, `"code":"etcd_unavailable"`) && t.Context().Err() == nil:
			continue
		case status >= 500 || busy != (header.Get("Retry-After") != ""):
			t.Errorf("%s: %d %s, Retry-After: %q", path, status, text, header.Get("Retry-After"))
		}
		return status
	}
}

func postOnce(t testing.TB, client *http.Client, path, body string) (status int, text string, header http.Header) {
	resp, err := client.Post("http://localhost"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return 0, "", nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return resp.StatusCode, string(data), resp.Header
}
