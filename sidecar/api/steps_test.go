package api

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
)

// Steps beyond the most that a run can have are not read.
func TestStepsThatAreTooManyAreNotRead(t *testing.T) {
	d := NewDecoder[RunRequest](false)
	run := func(n int, last string) []byte {
		return []byte(`{"steps":[` + strings.Repeat(`{"name":"a"},`, n) + last + `]}`)
	}
	if r, err := d.Decode(run(step.MaxSteps-1, `{"name":"b"}`)); err != nil || len(r.Steps) != step.MaxSteps || r.Steps[step.MaxSteps-1].Name != "b" {
		t.Errorf("%d steps, %v", len(r.Steps), err)
	}
	_, err := d.Decode(run(step.MaxSteps, `{"unknown":1}`))
	if want := "steps: there are more than 1000, which is the most that is allowed"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// The document describes steps by a type of its own, since that of the steps knows
// nothing of documents.
func TestStepsAreDescribedByTheirFields(t *testing.T) {
	names := func(t reflect.Type) []string { return slices.Sorted(strings.SplitSeq(fieldsOf(t), ", ")) }
	got, want := names(reflect.TypeFor[stepSpec]()), names(reflect.TypeFor[step.Spec]())
	if !slices.Equal(got, want) {
		t.Errorf("described are %v, and there are %v", got, want)
	}
}
