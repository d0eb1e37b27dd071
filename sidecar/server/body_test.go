package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
)

// bodies is a handler whose endpoint /large takes large bodies.
func bodies(serve http.HandlerFunc) *Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", serve)
	return NewHandler(Handler{
		Routes: mux, Metrics: NewMetrics(nil), Log: hclog.NewNullLogger(),
		Config: Config{Names: []string{"example.com"}},
		Bodies: map[string]Limit{"/large": {Bytes: 4 << 20, Values: 1000}},
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) int {
			http.Error(w, string(problem.CodeOf(err)), problem.CodeOf(err).Status())
			return problem.CodeOf(err).Status()
		},
	})
}

// recorder is a connection without deadlines.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }

// sent sends a body of a known or unknown length, from an administrator.
func sent(h *Handler, path, body string, chunked bool) *httptest.ResponseRecorder {
	return sentBy(h, accesstest.Admin, path, body, chunked)
}

func sentBy(h *Handler, by access.Identity, path, body string, chunked bool) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r = r.WithContext(accesstest.As(r.Context(), by))
	r.Header.Set("Content-Type", "application/json")
	if chunked {
		r.ContentLength = -1
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(recorder{w}, r)
	return w
}

// long is a body of a length.
func long(n int) string { return strings.Replace(`{"a":[X]}`, "X", list(n-8), 1) }

// list holds texts, n bytes long.
func list(n int) string {
	const each = 9_999
	var b strings.Builder
	for b.Len()+each+3 < n {
		b.WriteString(`"` + strings.Repeat("x", each) + `",`)
	}
	b.WriteString(`"` + strings.Repeat("x", n-b.Len()-2) + `"`)
	return b.String()
}

func TestBodiesArriveWhole(t *testing.T) {
	var got string
	h := bodies(func(_ http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = string(data)
	})
	for _, n := range []int{12, freeBody, freeBody + 1, MaxBody, MaxBody + 1, 4 << 20} {
		for _, chunked := range []bool{false, true} {
			body := long(n)
			if w := sent(h, "/large", body, chunked); len(body) != n || w.Code != 200 || got != body {
				t.Errorf("of %d bytes (chunked: %t), %d have arrived: %d %s", len(body), chunked, len(got), w.Code, w.Body)
			}
		}
	}
	wantFree(t, h)
}

// wantFree takes all memory, of which no share may be left over.
func wantFree(t *testing.T, h *Handler) {
	t.Helper()
	for q, size := range map[*quota]int64{
		h.small.arriving: smallArriving, h.small.decoded: smallDecoded, h.large.arriving: largeArriving, h.large.decoded: largeDecoded,
		h.underWay: math.MaxInt64,
	} {
		if len(q.of) > 0 || !q.total.TryAcquire(size) {
			t.Errorf("a body that has ended has a share of %d: %v", size, q.of)
			continue
		}
		q.total.Release(size)
	}
}

func TestBodiesAreCounted(t *testing.T) {
	h := bodies(func(http.ResponseWriter, *http.Request) {})
	big := list(MaxBody)
	for what, c := range map[string]struct {
		body string
		want problem.Code
	}{
		"as deep as can be":      {strings.Repeat("[", maxDepth) + big + strings.Repeat("]", maxDepth), ""},
		"too deep":               {strings.Repeat("[", maxDepth+1) + big + strings.Repeat("]", maxDepth+1), problem.TooLarge},
		"too many values":        {"[" + strings.Repeat("1,", 1000) + big + "]", problem.TooLarge},
		"many values, far down":  {`{"a":[{"b":[[` + strings.Repeat("1,", 5000) + big + "]]}]}", ""},
		"a long text":            {`["` + strings.Repeat("x", maxSpan*2) + `"]`, problem.TooLarge},
		"a long value, far down": {`{"a":[{"b":[[` + strings.Repeat("1,", maxSpan) + "1]]}]}", problem.TooLarge},
		"much space":             {"[" + strings.Repeat(" ", maxSpan*2) + "]", problem.TooLarge},
		"too long":               {long(4<<20 + 1), problem.TooLarge},
		"the beginning alone":    {"[" + big, problem.Malformed},
		"junk":                   {"[" + big + "}", problem.Malformed},
		"more behind it":         {"[" + big + "] []", problem.Malformed},
		"space behind it":        {"[" + big + "] \n", ""},
	} {
		for _, chunked := range []bool{false, true} {
			w := sent(h, "/large", c.body, chunked)
			if got := strings.TrimSpace(w.Body.String()); got != string(c.want) {
				t.Errorf("%s (chunked: %t): %q, want %q", what, chunked, got, c.want)
			}
		}
	}
	wantFree(t, h)
}

// Who has no role can't hold the memory for the bodies of those who have one.
func TestCallersWithoutARoleTakeNoMemoryForBodies(t *testing.T) {
	h := bodies(func(http.ResponseWriter, *http.Request) {})
	for who, want := range map[*access.Identity]int{{}: 401, {Kind: access.TokenBearer, Name: "ci"}: 403} {
		for _, chunked := range []bool{false, true} {
			if w := sentBy(h, *who, "/small", long(freeBody), chunked); w.Code != 200 {
				t.Errorf("a short body of %s (chunked: %t): %d %s", who, chunked, w.Code, w.Body)
			}
			for _, path := range []string{"/small", "/large"} {
				if w := sentBy(h, *who, path, long(MaxBody), chunked); w.Code != want {
					t.Errorf("a body for %s of %s (chunked: %t): %d %s", path, who, chunked, w.Code, w.Body)
				}
			}
		}
	}
	wantFree(t, h)
}

// TestSmallBodiesDoNotWaitBehindLargeOnes holds large bodies in memory until another is refused.
func TestSmallBodiesDoNotWaitBehindLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		h := bodies(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/large" {
				<-ctx.Done()
			}
		})
		const most = largeArriving / 2 / (4<<20 + 1<<20)
		for range most {
			go sent(h, "/large", long(4<<20), false)
			go sentBy(h, ann, "/large", long(4<<20), false)
		}
		synctest.Wait()
		begun := time.Now()
		for _, n := range []int{12, freeBody + 1, MaxBody} {
			if w := sent(h, "/small", long(n), false); w.Code != 200 || time.Since(begun) != 0 {
				t.Errorf("%d bytes after %s: %d %s", n, time.Since(begun), w.Code, w.Body)
			}
		}
		if w := sent(h, "/large", long(4<<20), false); w.Code != 429 || time.Since(begun) != shareTimeout {
			t.Errorf("after %s: %d %s", time.Since(begun), w.Code, w.Body)
		}
		go func() {
			time.Sleep(shareTimeout / 2)
			end()
		}()
		if w := sent(h, "/large", long(4<<20), false); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		synctest.Wait()
		wantFree(t, h)
	})
}

// ann and bob are two identities with a role.
var (
	ann = access.Identity{Kind: access.User, Name: "ann", Grants: access.DefaultGrants}
	bob = access.Identity{Kind: access.User, Name: "bob", Grants: access.DefaultGrants}
)

// stalled is a body of which nothing arrives until the end.
type stalled struct{ ended <-chan struct{} }

func (s stalled) Read([]byte) (int, error) {
	<-s.ended
	return 0, io.ErrUnexpectedEOF
}

// TestSlowBodiesOfOneIdentityDoNotRefuseThoseOfOthers has one identity begin to send more bodies than
// there is memory for, of each size, and send none of them.
func TestSlowBodiesOfOneIdentityDoNotRefuseThoseOfOthers(t *testing.T) {
	for _, length := range []int64{12, freeBody + 1, MaxBody, 4 << 20, -1} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			h := bodies(func(http.ResponseWriter, *http.Request) {})
			slow := func() *httptest.ResponseRecorder {
				r := httptest.NewRequest(http.MethodPost, "/large", stalled{ctx.Done()})
				r = r.WithContext(accesstest.As(r.Context(), ann))
				r.ContentLength = length
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				h.ServeHTTP(recorder{w}, r)
				return w
			}
			for range 200 {
				go slow()
			}
			synctest.Wait()
			begun := time.Now()
			for _, n := range []int{12, freeBody + 1, MaxBody, 4 << 20} {
				for _, chunked := range []bool{false, true} {
					if w := sentBy(h, bob, "/large", long(n), chunked); w.Code != 200 || time.Since(begun) != 0 {
						t.Errorf("%d bytes of another, while bodies of %d bytes are slow: %d %s after %s", n, length, w.Code, w.Body, time.Since(begun))
					}
				}
			}
			if w := slow(); w.Code != 429 || time.Since(begun) != shareTimeout {
				t.Errorf("one more of %d bytes after %s: %d %s", length, time.Since(begun), w.Code, w.Body)
			}
			end()
			synctest.Wait()
			wantFree(t, h)
		})
	}
}

// FuzzCount counts bodies in pieces of all sizes. What is not refused is JSON.
func FuzzCount(f *testing.F) {
	for _, text := range []string{`{"a":[1,{"b":"c"}]}`, "[[[[[[]]]]]]", "{} {}", "[1,", `{"a":1,"a":2}`, " ", "\"\xff\"", "nul", "1e9"} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, piece int) {
		h := bodies(func(_ http.ResponseWriter, r *http.Request) {
			if got := string(BodyOf(r).Bytes()); got != text {
				t.Errorf("%q has arrived of %q", got, text)
			}
		})
		if text == "" {
			return
		}
		r := httptest.NewRequest(http.MethodPost, "/large", pieces{strings.NewReader(text), max(piece, 1)})
		r.ContentLength = -1
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(recorder{w}, r)
		valid := json.Valid([]byte(text)) || strings.Trim(text, " \n\r\t") == ""
		if bounded := strings.Contains(w.Body.String(), string(problem.TooLarge)); valid != (w.Code == 200) && !bounded {
			t.Errorf("%q: %d %s", text, w.Code, w.Body)
		}
		wantFree(t, h)
	})
}

// pieces returns a text piece by piece.
type pieces struct {
	of   *strings.Reader
	size int
}

func (p pieces) Read(to []byte) (int, error) {
	n, err := p.of.Read(to[:min(len(to), p.size)])
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("by design: %w", err)
	}
	return n, err
}
