package run

import (
	"errors"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func TestTextsThatWouldGarbleAListOfRunsAreRefusedAndOldOnesAreRead(t *testing.T) {
	for _, text := range []string{"a\u202eb", "\u2066a", "a\u200f", "a\u2028b"} {
		for field, spec := range map[string]Spec{
			"name": {Name: text}, "owner": {Owner: text},
			"tags": {Tags: map[string]string{text: "x"}}, "tags.env": {Tags: map[string]string{"env": text}},
			"labels": {Labels: map[string]string{text: "x"}}, "labels.env": {Labels: map[string]string{"env": text}},
		} {
			wantField(t, text, field, spec.ValidateNew())
			if err := spec.Validate(); err != nil {
				t.Errorf("a record that has %q as %s can't be read: %v", text, field, err)
			}
		}
		limit := LimitsChange{Tags: []TagLimit{{Key: "a", Limit: 1}, {Key: text, Limit: 1}}}
		wantField(t, text, "tags[1]", limit.Validate())
		limit.Tags[1].Limit = Unlimited
		if err := limit.Validate(); err != nil {
			t.Errorf("the limit of %q can't be removed: %v", text, err)
		}
		_, err := Store{}.Start(t.Context(), "r", Executor{Name: text}, nil)
		wantField(t, text, "executor", err)
	}
}

func wantField(t *testing.T, text, field string, err error) {
	t.Helper()
	var p *problem.Error
	if !errors.As(err, &p) || p.Field != field {
		t.Errorf("%q as %s: %v", text, field, err)
	}
}
