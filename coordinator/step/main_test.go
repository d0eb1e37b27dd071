package step

import (
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/berthhq/berth/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wantField checks that a refusal is about a field, and says what it should.
func wantField(t *testing.T, err error, field, message string) {
	t.Helper()
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != problem.Invalid || p.Field != field {
		t.Errorf("%s: %v", field, err)
	} else if message != "" && p.Message != message {
		t.Errorf("%s:\ngot  %s\nwant %s", field, p.Message, message)
	}
}

// specsOf makes a step of each name, with the names behind it as its needs.
func specsOf(steps ...[]string) []Spec {
	specs := make([]Spec, len(steps))
	for i, names := range steps {
		specs[i] = Spec{Name: names[0], Needs: names[1:], Command: []string{"true"}}
	}
	return specs
}

// named are the names of a number of steps.
func named(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("s", i)
	}
	return names
}

func mustGraph(t *testing.T, specs ...Spec) *Graph {
	t.Helper()
	g, err := NewGraph(specs)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
