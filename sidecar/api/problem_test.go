package api

import (
	"errors"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func TestAnErrorOfAnEndpointIsAProblem(t *testing.T) {
	p := ProblemOf(errors.New("no problem of ours"))
	if p.Status != 500 || p.Code != "internal" {
		t.Errorf("%+v", p)
	}
	q := NewProblem("claim_lost", "it is lost")
	if got := ProblemOf(q.Err()); got.Code != q.Code || got.Detail != q.Detail || got.Status != 409 {
		t.Errorf("there and back: %+v", got)
	}
	f := FieldProblem(FieldError{Field: "pools.db", Message: "too many"})
	if e := f.Err(); e.Field != "pools.db" || e.Message != "too many" || e.Error() != "pools.db: too many" {
		t.Errorf("%+v", e)
	}
}

func TestAProblemThatPassesSaysWhenToTryAgain(t *testing.T) {
	for _, code := range problem.Codes() {
		w := httptest.NewRecorder()
		p := NewProblem(code, "so it is")
		p.Write(w)
		got := w.Header().Get("Retry-After")
		if seconds, err := strconv.Atoi(got); got != "" && (err != nil || seconds < 1) {
			t.Errorf("%s: Retry-After: %s", code, got)
		}
		if want := p.Status == 503 && code != problem.EtcdDenied || p.Status == 408 || p.Status == 429 || code == problem.NoCapacity; want != (got != "") {
			t.Errorf("%s (%d): Retry-After: %q", code, p.Status, got)
		}
		if got != p.GetHeaders().Get("Retry-After") {
			t.Errorf("%s: the two ways to answer differ", code)
		}
	}
}
