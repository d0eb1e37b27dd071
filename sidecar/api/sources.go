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
	Candidates []SourceCandidate `json:"candidates" nullable:"false" doc:"Who runs it: the first looks, the others stand by."`
	Known      int               `json:"known" doc:"How many ids of items are remembered."`
	LastLook   *SourceLook       `json:"last_look" doc:"What the last look came to; null before there was any."`
	Problem    string            `json:"problem,omitempty" doc:"What is known of it and can't be read."`
}

// TransformSchema states in the OpenAPI document that the poll can be null.
func (Source) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "last_look")
}

// SourceCandidate is a candidate to run a source.
type SourceCandidate struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`
}

// SourceLook is the result of one poll of a source.
type SourceLook struct {
	By        string    `json:"by" doc:"The host that looked."`
	Interval  Duration  `json:"interval" doc:"How often it looks."`
	At        time.Time `json:"at"`
	Took      Duration  `json:"took"`
	Listed    int       `json:"listed" doc:"Items, those that were refused among them."`
	Submitted int       `json:"submitted" doc:"Items that became runs."`
	Refused   int       `json:"refused" doc:"Items that can't become runs."`
	Refusal   string    `json:"refusal,omitempty" doc:"Why the first of those was refused."`
	Error     string    `json:"error,omitempty" doc:"Why the look failed."`
	Failures  int       `json:"failures,omitempty" doc:"How many have failed in a row."`
	LastGood  time.Time `json:"last_good,omitzero" doc:"When the last look began that did not fail."`
}

// SourceWake has a source poll at once.
type SourceWake struct {
	Wait *Duration `json:"wait,omitempty" doc:"How long to wait for the look, 0s to 1h; not at all if left out."`
}

// SourceWoken is the result of a [SourceWake].
type SourceWoken struct {
	Look *SourceLook `json:"look" doc:"What the look came to; null if it was not waited for, or was not over in time."`
}

// TransformSchema states in the OpenAPI document that the poll can be null.
func (SourceWoken) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "look")
}

// orNull states in the OpenAPI document that an object can be null.
func orNull(s *huma.Schema, name string) *huma.Schema {
	was := *s.Properties[name]
	s.Properties[name] = &huma.Schema{Description: was.Description, OneOf: []*huma.Schema{{Ref: was.Ref}, {Type: "null"}}}
	return s
}

// SourceOf returns a source as a record.
func SourceOf(o sources.Overview) Source {
	s := Source{Name: o.Name, Candidates: make([]SourceCandidate, len(o.Candidates)), Known: o.Seen}
	for i, c := range o.Candidates {
		s.Candidates[i] = SourceCandidate{Host: c.Host, Instance: c.Instance, Version: c.Version, Since: c.Since}
	}
	if o.Last != nil {
		l := SourceLookOf(*o.Last)
		s.LastLook = &l
	}
	if len(o.Bad) > 0 {
		s.Problem = errors.Join(o.Bad...).Error()
	}
	return s
}

// SourceLookOf returns a poll as a record.
func SourceLookOf(l sources.Look) SourceLook {
	return SourceLook{
		By: l.By, Interval: Duration(l.Interval), At: l.At, Took: Duration(l.Took),
		Listed: l.Listed, Submitted: l.Submitted, Refused: l.Refused, Refusal: l.Refusal,
		Error: l.Error, Failures: l.Failures, LastGood: l.LastGood,
	}
}
