package api

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
)

// The document describes steps by a type of its own, since that of the steps knows
// nothing of documents.
func TestStepsAreDescribedByTheirFields(t *testing.T) {
	names := func(t reflect.Type) []string { return slices.Sorted(strings.SplitSeq(fieldsOf(t), ", ")) }
	got, want := names(reflect.TypeFor[stepSpec]()), names(reflect.TypeFor[step.Spec]())
	if !slices.Equal(got, want) {
		t.Errorf("described are %v, and there are %v", got, want)
	}
}
