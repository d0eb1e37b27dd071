package step

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAGraphHasTheShapesOfItsSteps(t *testing.T) {
	g := mustGraph(t,
		Spec{Name: "report", Needs: []string{"load", "extract"}, Shell: "true"},
		Spec{
			Name: "load", Needs: []string{"extract"}, Items: &Items{Range: &Range{1, 20, 1}}, Concurrency: 3,
			Pools: map[string]int{"db": 2}, Task: Task{Name: "resize"}, Queue: "big", External: true,
			Retries: 2, Backoff: Duration(time.Second), Timeout: Duration(time.Minute), OnFailure: Finish,
		},
		Spec{Name: "extract", Items: itemsOf("1", "2"), Command: []string{"true"}},
	)
	want := []Shape{
		{Name: "extract", Count: 2, Queue: "default", OnFailure: Fail},
		{
			Name: "load", Needs: []int{0}, Count: 20, Concurrency: 3, Pools: map[string]int{"db": 2}, Task: "resize", Queue: "big",
			External: true, Retries: 2, Backoff: Duration(time.Second), Timeout: Duration(time.Minute), OnFailure: Finish,
		},
		{Name: "report", Needs: []int{0, 1}, Count: 1, Queue: "default", OnFailure: Fail},
	}
	if d := cmp.Diff(want, g.Shapes()); d != "" {
		t.Error(d)
	}
	if g.Total() != 23 || g.Number("report") != 2 || g.Number("nope") != -1 {
		t.Errorf("%d instances, report is %d", g.Total(), g.Number("report"))
	}
	read, err := DecodeGraph("k", g.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, read.Shapes()); d != "" || read.Total() != 23 {
		t.Errorf("read back, of %d instances:\n%s", read.Total(), d)
	}
}

func TestStepsKeepTheirOrderWhereTheyCan(t *testing.T) {
	for _, c := range []struct {
		specs []Spec
		want  string
	}{
		{specsOf([]string{"a"}, []string{"b"}, []string{"c"}), "a b c"},
		{specsOf([]string{"c"}, []string{"b"}, []string{"a"}), "c b a"},
		{specsOf([]string{"a", "c"}, []string{"b"}, []string{"c"}), "b c a"},
		{specsOf([]string{"a", "b"}, []string{"b", "c"}, []string{"c", "d"}, []string{"d"}), "d c b a"},
		{specsOf([]string{"end", "x", "y"}, []string{"y", "start"}, []string{"x", "start"}, []string{"start"}), "start y x end"},
		{specsOf([]string{"a"}, []string{"b", "d"}, []string{"c", "a"}, []string{"d"}), "a c d b"},
	} {
		var got []string
		for _, s := range mustGraph(t, c.specs...).Shapes() {
			got = append(got, s.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v, want %s", got, c.want)
		}
	}
}

func TestGraphsThatAreRefused(t *testing.T) {
	many := make([]Spec, MaxSteps+1)
	var fan, wide []Spec
	for _, name := range named(3) {
		fan = append(fan, Spec{Name: name, External: true, Items: &Items{Range: &Range{1, MaxItems, 1}}})
	}
	for i, name := range named(MaxSteps) {
		wide = append(wide, Spec{Name: name, External: true, Needs: named(i)})
	}
	for _, c := range []struct {
		field, message string
		specs          []Spec
	}{
		{"steps", "there is none: at least one is needed", nil},
		{"steps", "1001 are too many: use at most 1000", many},
		{"steps", "they have 300000 instances together: use at most 200000", fan},
		{"steps", "", wide},
		{"steps.b.retries", "", append(specsOf([]string{"a"}), Spec{Name: "b", Shell: "x", Retries: -1})},
		{"steps[1].name", "", append(specsOf([]string{"a"}), Spec{Shell: "x"})},
		{"steps[2].name", `"a" is the name of steps[0] already: names are unique in a run`, specsOf([]string{"a"}, []string{"b"}, []string{"a"})},
		{"steps.a.needs", `there is no step "x": use the names of the run's other steps`, specsOf([]string{"a", "x"})},
		{"steps.a.needs", "a step can't need itself", specsOf([]string{"a", "a"})},
		{"steps.b.needs", `"a" is named twice: once is enough`, specsOf([]string{"a"}, []string{"b", "a", "a"})},
		{"steps.a.needs", "these steps would wait for each other: a needs b needs a", specsOf([]string{"a", "b"}, []string{"b", "a"})},
		{
			"steps.a.needs", "these steps would wait for each other: a needs b needs c needs a",
			specsOf([]string{"free"}, []string{"behind", "c"}, []string{"a", "free", "b"}, []string{"b", "c"}, []string{"c", "free", "a"}),
		},
	} {
		_, err := NewGraph(c.specs)
		wantField(t, err, c.field, c.message)
	}
}

func TestAsManyStepsAndInstancesAsThereMayBe(t *testing.T) {
	specs := specsOf()
	for i, name := range named(MaxSteps) {
		s := Spec{Name: name, External: true}
		if i > 0 {
			s.Needs = []string{fmt.Sprint("s", i-1)}
		}
		if i < 2 {
			s.Items = &Items{Range: &Range{1, MaxItems - 499, 1}}
		}
		specs = append(specs, s)
	}
	if g := mustGraph(t, specs...); g.Total() != MaxInstances {
		t.Errorf("%d instances", g.Total())
	}
}

func TestGraphsThatCantBeRead(t *testing.T) {
	const a = `{"name":"a","count":1,"queue":"q","on_failure":"fail"}`
	for _, text := range []string{
		``, `{}`, `{"v":1}`, `{"v":1,"steps":[]}`, `{"v":2,"steps":[` + a + `]}`, `{"v":1,"steps":[` + a + `],"more":1}`,
		`{"v":1,"steps":[` + a + `,` + a + `]}`,
		`{"v":1,"steps":[{"name":"A","count":1,"queue":"q","on_failure":"fail"}]}`,
		`{"v":1,"steps":[{"name":"a","count":0,"queue":"q","on_failure":"fail"}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"","on_failure":"fail"}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":""}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":"fail","needs":[0]}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":"fail","needs":[-1]}]}`,
		`{"v":1,"steps":[` + a + `,{"name":"b","count":1,"queue":"q","on_failure":"fail","needs":[0,0]}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":"fail","retries":101}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":"fail","pools":{"db":0}}]}`,
		`{"v":1,"steps":[{"name":"a","count":1,"queue":"q","on_failure":"fail","timeout":"x"}]}`,
		`{"v":1,"steps":[{"name":"a","count":100000,"queue":"q","on_failure":"fail"},{"name":"b","count":100000,"queue":"q","on_failure":"fail"},` +
			`{"name":"c","count":1,"queue":"q","on_failure":"fail"}]}`,
	} {
		g, err := DecodeGraph("k", []byte(text))
		wantCorrupt(t, "k", err)
		if g != nil {
			t.Errorf("%s: %+v", text, g)
		}
	}
	if _, err := DecodeGraph("k", []byte(`{"v":1,"steps":[`+a+`]}`)); err != nil {
		t.Error(err)
	}
}
