package api

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// ProblemType is the media type of a [Problem].
const ProblemType = "application/problem+json"

// Problem is what every error is answered as: problem details of RFC 9457, with
// a code that programs can branch on.
type Problem struct {
	Title  string       `json:"title" doc:"What the code means."`
	Status int          `json:"status"`
	Code   string       `json:"code" doc:"What went wrong, for programs. Codes are stable; new ones may be added."`
	Detail string       `json:"detail" doc:"What happened and what to do, for a person."`
	Errors []FieldError `json:"errors,omitempty" nullable:"false" doc:"The fields of the input that are at fault."`

	// Of claims that do not fit: why, as in [Reason].
	Reason   string      `json:"reason,omitempty"`
	Position int         `json:"position,omitempty"`
	Waiting  int         `json:"waiting,omitempty"`
	Since    time.Time   `json:"since,omitzero"`
	Pools    []Shortage  `json:"pools,omitempty" nullable:"false"`
	Holders  []HolderRef `json:"holders,omitempty" nullable:"false"`

	// NotReady is what is missing, of a /readyz that says no.
	NotReady []string `json:"not_ready,omitempty" nullable:"false"`

	RequestID string `json:"request_id,omitempty" doc:"The id of the request, as in the header X-Request-Id, and in the log of the server."`
}

// TransformSchema lists the codes in the OpenAPI document.
func (*Problem) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	for _, c := range slices.Sorted(slices.Values(problem.Codes())) {
		s.Properties["code"].Enum = append(s.Properties["code"].Enum, string(c))
	}
	return s
}

// FieldError is one field of the input that is at fault.
type FieldError struct {
	Field   string `json:"field" doc:"As in pools.db, or the name of a parameter."`
	Message string `json:"message"`
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType makes problem+json of JSON.
func (p *Problem) ContentType(string) string { return ProblemType }

// retryAfter is after how many seconds the same request may succeed, by code. Codes of which
// that can't be expected are not in it, such as etcd_denied. What an operator has to repair
// takes longer.
var retryAfter = map[problem.Code]int{
	problem.SlowRequest:     1,
	problem.EtcdUnavailable: 2,
	problem.NoCapacity:      5,
	problem.Stopping:        5,
	problem.TooManyRequests: 5,
	problem.Unavailable:     5,
	problem.EtcdFull:        30,
	problem.TooMany:         30,
	problem.StateUnwritable: 30,
}

// RetryAfter is the header that says after how many seconds to repeat a request.
const RetryAfter = "Retry-After"

// GetHeaders returns the headers of the answer.
func (p *Problem) GetHeaders() http.Header {
	header := http.Header{}
	if seconds := retryAfter[problem.Code(p.Code)]; seconds > 0 {
		header.Set(RetryAfter, strconv.Itoa(seconds))
	}
	return header
}

// NewProblem returns the problem of a code.
func NewProblem(code problem.Code, format string, args ...any) *Problem {
	return &Problem{
		Title: code.Title(), Status: code.Status(), Code: string(code),
		Detail: fmt.Sprintf(format, args...),
	}
}

// FieldProblem returns an invalid problem of fields.
func FieldProblem(fields ...FieldError) *Problem {
	texts := make([]string, len(fields))
	for i, f := range fields {
		texts[i] = f.Field + ": " + f.Message
	}
	p := NewProblem(problem.Invalid, "%s", strings.Join(texts, "; "))
	p.Errors = fields
	return p
}

// ProblemOf returns an error as a problem.
func ProblemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var e *problem.Error
	if !errors.As(err, &e) {
		return NewProblem(problem.Internal, "%s", err)
	}
	p = NewProblem(e.Code, "%s", e.Error())
	if e.Field != "" {
		p.Errors = []FieldError{{Field: e.Field, Message: e.Message}}
	}
	if r, ok := e.Detail.(pool.Reason); ok {
		why := inspect.ReasonOf(r)
		p.Reason, p.Position, p.Waiting, p.Since = why.Text, why.Position, why.Waiting, why.Since
		p.Pools, p.Holders = why.Pools, why.Holders
	}
	return p
}

// Err returns a problem that a server answered as an error.
func (p *Problem) Err() *problem.Error {
	e := problem.New(problem.Code(p.Code), "%s", p.Detail)
	if len(p.Errors) == 1 {
		e.Field, e.Message = p.Errors[0].Field, p.Errors[0].Message
	}
	if p.Reason != "" {
		e.Detail = Reason{
			Text: p.Reason, Position: p.Position, Waiting: p.Waiting, Since: p.Since,
			Pools: p.Pools, Holders: p.Holders,
		}
	}
	return e
}

// requestIDHeader is the header with the id of a request, which package server sets.
const requestIDHeader = "X-Request-Id"

// transformError returns errors of huma as a [Problem]: parameters that don't fit, a missing
// body, and its own faults. Every problem gets the id of the request.
func transformError(ctx huma.Context, _ string, v any) (any, error) {
	var p *Problem
	switch e := v.(type) {
	default:
		return v, nil
	case *Problem:
		one := *e
		p = &one
	case *huma.ErrorModel:
		p = problemOfHuma(e)
	}
	_, w := humago.Unwrap(ctx)
	p.RequestID = w.Header().Get(requestIDHeader)
	return p, nil
}

func problemOfHuma(m *huma.ErrorModel) *Problem {
	switch m.Status {
	case http.StatusUnprocessableEntity:
		return parameterProblem(m.Errors)
	case http.StatusBadRequest:
		return NewProblem(problem.Malformed, "%s", m.Detail)
	}
	p := NewProblem(problem.Internal, "%s", m.Detail)
	p.Status = m.Status
	return p
}

// parameterProblem returns the problem of parameters that don't fit.
func parameterProblem(details []*huma.ErrorDetail) *Problem {
	fields := make([]FieldError, 0, len(details))
	for _, d := range details {
		_, field, ok := strings.Cut(d.Location, ".") // query.limit, path.id
		if !ok {
			field = d.Location
		}
		fields = append(fields, FieldError{Field: problem.Clip(field), Message: d.Message})
	}
	return FieldProblem(fields...)
}

// Write answers with the problem, without huma.
func (p *Problem) Write(w http.ResponseWriter) {
	one := *p
	one.RequestID = w.Header().Get(requestIDHeader)
	maps.Copy(w.Header(), p.GetHeaders())
	write(w, p.Status, ProblemType, one)
}
