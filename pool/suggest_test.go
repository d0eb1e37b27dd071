package pool

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func TestTheNameOfAPoolThatWasProbablyMeantIsSuggested(t *testing.T) {
	names := func() []string { return []string{"gpu", "demo"} }
	for want, err := range map[string]error{
		`there is no pool "dmeo": did you mean "demo"?`:                                                         NoPool("dmeo"),
		`there is no pool "dmeo": did you mean "demo"? Create it with 'berth pools set dmeo LIMIT'`:             NoSuchPool("dmeo"),
		`a.yaml:3:1: there is no pool "dmeo": did you mean "demo"? Create it with 'berth pools set dmeo LIMIT'`: fmt.Errorf("a.yaml:3:1: %w", NoSuchPool("dmeo")),
		`there is no pool "other"`: NoPool("other"),
	} {
		got := Suggest(err, names)
		if got.Error() != want || problem.CodeOf(got) != problem.PoolNotFound {
			t.Errorf("%v (%s), want %s", got, problem.CodeOf(got), want)
		}
	}
	other := errors.New("other")
	if Suggest(other, func() []string { t.Error("the names are read for another error"); return nil }) != other || Suggest(nil, names) != nil {
		t.Error("another error is changed")
	}
	field := NoSuchPool("dmeo")
	field.Field = "pools.dmeo"
	if p := problem.Of(Suggest(field, names)); p.Field != "pools.dmeo" {
		t.Errorf("the field is %q", p.Field)
	}
}
