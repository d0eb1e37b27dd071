package api

import (
	"errors"
	"testing"
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
