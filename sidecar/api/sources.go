package api

import (
	"errors"
	"time"

	"github.com/danielgtaylor/huma/v2"

	sources "github.com/berthhq/berth/sidecar/source"
)

// Source is a command that lists items, each of which becomes a run.
type Source struct {
	Name       string            `json:"name"`
	Candidates []SourceCandidate `json:"candidates" nullable:"false" doc:"The processes that run it: the first polls, the others stand by."`
	Known      int               `json:"known" doc:"The number of dedup records."`
	LastPoll   *SourcePoll       `json:"last_poll" doc:"The result of the last poll; null before the first."`
	Problem    string            `json:"problem,omitempty" doc:"The values of the source that cannot be read."`
}

// TransformSchema states in the OpenAPI document that the poll can be null.
func (Source) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "last_poll")
}

// SourceCandidate is a candidate to run a source.
type SourceCandidate struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`
}

// SourcePoll is the result of one poll of a source.
type SourcePoll struct {
	By        string    `json:"by" doc:"The host that polled."`
	Interval  Duration  `json:"interval" doc:"How often it polls."`
	At        time.Time `json:"at"`
	Took      Duration  `json:"took"`
	Listed    int       `json:"listed" doc:"Items, including those that were refused."`
	Submitted int       `json:"submitted" doc:"Items that became runs."`
	Refused   int       `json:"refused" doc:"Items that cannot become runs."`
	Refusal   string    `json:"refusal,omitempty" doc:"Why the first of those was refused."`
	Error     string    `json:"error,omitempty" doc:"Why the poll failed."`
	Failures  int       `json:"failures,omitempty" doc:"How many have failed in a row."`
	LastGood  time.Time `json:"last_good,omitzero" doc:"When the last poll began that did not fail."`
}

// SourceWake has a source poll at once.
type SourceWake struct {
	Wait *Duration `json:"wait,omitempty" doc:"How long to wait for the poll, 0s to 1h; default 0s."`
}

// SourceWoken is the result of a [SourceWake].
type SourceWoken struct {
	Poll *SourcePoll `json:"poll" doc:"The result of the poll; null without wait, or if it did not end in time."`
}

// TransformSchema states in the OpenAPI document that the poll can be null.
func (SourceWoken) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "poll")
}

// orNull states in the OpenAPI document that an object can be null.
func orNull(s *huma.Schema, name string) *huma.Schema {
	was := *s.Properties[name]
	s.Properties[name] = &huma.Schema{Description: was.Description, OneOf: []*huma.Schema{{Ref: was.Ref}, {Type: "null"}}}
	return s
}

// SourceOf returns a source as a record.
func SourceOf(o sources.Overview) Source {
	s := Source{Name: o.Name, Candidates: make([]SourceCandidate, len(o.Candidates)), Known: o.Known}
	for i, c := range o.Candidates {
		s.Candidates[i] = SourceCandidate{Host: c.Host, Instance: c.Instance, Version: c.Version, Since: c.Since}
	}
	if o.Last != nil {
		p := SourcePollOf(*o.Last)
		s.LastPoll = &p
	}
	if len(o.Bad) > 0 {
		s.Problem = errors.Join(o.Bad...).Error()
	}
	return s
}

// SourcePollOf returns a poll as a record.
func SourcePollOf(p sources.Poll) SourcePoll {
	return SourcePoll{
		By: p.By, Interval: Duration(p.Interval), At: p.At, Took: Duration(p.Took),
		Listed: p.Listed, Submitted: p.Submitted, Refused: p.Refused, Refusal: p.Refusal,
		Error: p.Error, Failures: p.Failures, LastGood: p.LastGood,
	}
}
