package api

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

func TestADurationThatIsANumberIsRefusedWithItsFieldAndTheFormThatIsAllowed(t *testing.T) {
	refusals := map[string]func(body string) (field, message string){
		"ClaimRequest": refusalOf[ClaimRequest], "RenewRequest": refusalOf[RenewRequest],
		"PoolChange": refusalOf[PoolChange], "RunStart": refusalOf[RunStart],
		"SourceWake": refusalOf[SourceWake], "StepTake": refusalOf[StepTake],
	}
	fields := map[string][]string{
		"ClaimRequest": durationFields[ClaimRequest](), "RenewRequest": durationFields[RenewRequest](),
		"PoolChange": durationFields[PoolChange](), "RunStart": durationFields[RunStart](),
		"SourceWake": durationFields[SourceWake](), "StepTake": durationFields[StepTake](),
	}
	for kind, names := range fields {
		if len(names) == 0 {
			t.Errorf("%s has no duration", kind)
		}
		for _, name := range names {
			for value, want := range map[string]string{
				"30": "not a number", "-1": "not a number", "true": "not a truth value", `"soon"`: `not "soon"`, `{"s":1}`: "not an object", "[1]": "not an array",
			} {
				field, message := refusals[kind](fmt.Sprintf(`{%q:%s}`, name, value))
				if field != name || !strings.HasPrefix(message, `must be a duration such as "30s", "5m" or "1h30m", `) || !strings.HasSuffix(message, want) {
					t.Errorf("%s.%s: %s is refused with %q: %s", kind, name, value, field, message)
				}
				if never := `or "-1" for never`; strings.Contains(message, never) != (name == "reserve_after") {
					t.Errorf("%s.%s: %s is refused with %s", kind, name, value, message)
				}
			}
		}
	}
	for _, name := range []string{"backoff", "timeout"} {
		field, message := refusalOf[RunRequest](fmt.Sprintf(`{"steps":[{"name":"a",%q:7}]}`, name))
		if want := `must be a duration such as "30s", "5m" or "1h30m", not a number`; field != "steps.a."+name || message != want {
			t.Errorf("%s of a step is refused with %q: %s", name, field, message)
		}
	}
}

func TestARemovedSettingIsRefusedAsSuch(t *testing.T) {
	for _, body := range []string{`{"limit":3,"retain":"1s"}`, `{"retain":"0s"}`} {
		if field, message := refusalOf[PoolChange](body); field != "retain" || message != pool.RetainRemoved {
			t.Errorf("%s is refused with %q: %s", body, field, message)
		}
	}
	if field, message := refusalOf[RenewRequest](`{"retain":"1s"}`); field != "retain" || message == pool.RetainRemoved {
		t.Errorf("a field that never was is refused with %q: %s", field, message)
	}
}

// refusalOf is what is said of a body: the field and the message.
func refusalOf[T any](body string) (field, message string) {
	d := NewDecoder[T](false)
	_, err := d.Decode([]byte(body))
	if err == nil {
		return "", "taken"
	}
	p := ProblemOf(err)
	if len(p.Errors) != 1 {
		return "", p.Detail
	}
	return p.Errors[0].Field, p.Errors[0].Message
}

// durationFields are the names of the fields of a request that are durations.
func durationFields[T any]() []string {
	var all []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if slices.Contains([]reflect.Type{reflect.TypeFor[Duration](), reflect.PointerTo(reflect.TypeFor[Duration]())}, f.Type) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			all = append(all, name)
		}
	}
	return all
}

func TestABodyIsAnObject(t *testing.T) {
	for _, body := range []string{"null", " null\n", "[]", `"x"`, "1", "true"} {
		for _, optional := range []bool{false, true} {
			d := NewDecoder[RevokeRequest](optional)
			if _, err := d.Decode([]byte(body)); err == nil || ProblemOf(err).Code != string(problem.Malformed) {
				t.Errorf("%s, optional %t: %v", body, optional, err)
			}
		}
	}
}
