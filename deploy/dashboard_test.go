package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is a dashboard of Grafana, as far as it is checked here.
type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Panels        []panel
	Templating    struct{ List []variable }
	Annotations   struct {
		List []struct{ Expr, TitleFormat string }
	}
}

type variable struct {
	Name, Type, Definition string
}

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	Datasource  *source
	GridPos     struct{ H, W, X, Y int }
	Targets     []struct {
		RefID        string
		Expr         string
		LegendFormat string
		Datasource   *source
	}
}

type source struct{ Type, UID string }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("grafana/berth.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, bytes.TrimSpace(text), "", "  "); err != nil || pretty.String()+"\n" != string(text) {
		t.Errorf("grafana/berth.json is not indented by two spaces: changes of it can't be read")
	}
	return d
}

var (
	legendLabel = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
	used        = regexp.MustCompile(`\$(\w+)|\$\{(\w+)\}`)
	labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)
)

// variables that Grafana has itself.
var own = []string{"__rate_interval"}

// resolve has an expression read as it is when Grafana has put its variables in.
func (d dashboard) resolve(expr string) (string, error) {
	for _, m := range used.FindAllStringSubmatch(expr, -1) {
		name := m[1] + m[2]
		defined := slices.ContainsFunc(d.Templating.List, func(v variable) bool { return v.Name == name })
		if !defined && !slices.Contains(own, name) {
			return "", fmt.Errorf("there is no variable %s", name)
		}
	}
	return strings.ReplaceAll(expr, "$__rate_interval", "5m"), nil
}

// check reads an expression, and what is written of its labels.
func (d dashboard) check(expr, legend string, metrics catalog) error {
	resolved, err := d.resolve(expr)
	if err != nil {
		return err
	}
	labels, err := checkExpr(resolved, metrics)
	if err != nil {
		return err
	}
	for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
		if !slices.Contains(labels, m[1]) {
			return fmt.Errorf("legend %q: the labels are %q", legend, labels)
		}
	}
	if strings.Contains(legendLabel.ReplaceAllString(legend, ""), "{") {
		return fmt.Errorf("legend %q can't be read", legend)
	}
	if !strings.Contains(expr, `job="$job"`) && !strings.HasPrefix(expr, "label_values(berth_pool_limit, job)") {
		return fmt.Errorf("it is about all fleets, not the one that was chosen")
	}
	return nil
}

func TestTheDashboardIsAboutMetricsThatThereAre(t *testing.T) {
	d, metrics := readDashboard(t), documented(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion == 0 {
		t.Error("it has no title, uid or schemaVersion")
	}
	for _, p := range d.Panels {
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.Datasource == nil || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no description, no targets, or a datasource of its own", p.Title)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if err := d.check(q.Expr, q.LegendFormat, metrics); err != nil {
				t.Errorf("panel %q: %s: %v", p.Title, q.Expr, err)
			}
			if q.RefID == "" || refs[q.RefID] || q.Datasource == nil || q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q: a target has no id, that of another, or a datasource of its own", p.Title)
			}
			refs[q.RefID] = true
			if len(p.Targets) > 1 && q.LegendFormat == "" {
				t.Errorf("panel %q: a target of several has no legend", p.Title)
			}
		}
	}
	for _, a := range d.Annotations.List {
		if err := d.check(a.Expr, a.TitleFormat, metrics); err != nil {
			t.Errorf("annotation %s: %v", a.Expr, err)
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := labelValues.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: %q is no label_values", v.Name, v.Definition)
			continue
		}
		labels, err := checkExpr(m[1], metrics)
		if err != nil || !slices.Contains(labels, m[2]) {
			t.Errorf("variable %s: %q: labels %q, error %v", v.Name, v.Definition, labels, err)
		}
	}
}

// What berth tells should be seen somewhere: a metric that is new belongs into the
// dashboard or into an alert, or here with the reason.
func TestEveryMetricIsShownOrWatched(t *testing.T) {
	unseen := map[string]string{
		"berth_coordinator_events_total":     "a detail for operators who check etcd's size",
		"berth_trace_spans_total":            "only of processes that send traces",
		"berth_runs_wait_estimate_ratio":     "how good estimates are is a question of some days: docs/how-to/monitoring.md has the query",
		"berth_executor_starts_total":        "the gauge of what is in progress tells more",
		"berth_executor_finishes_total":      "as above",
		"berth_executor_step_starts_total":   "as above",
		"berth_executor_step_finishes_total": "as above",
	}
	var text strings.Builder
	for _, path := range []string{"grafana/berth.json", "prometheus/alerts.yaml"} {
		part, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(part)
	}
	for name := range documented(t) {
		if strings.HasPrefix(name, "berth_source_") {
			continue // what to watch of a source is in docs/reference/source-files.md
		}
		shown := regexp.MustCompile(name + `(_bucket|_sum|_count)?\b`).MatchString(text.String())
		if _, ok := unseen[name]; ok == shown {
			t.Errorf("%s: shown or watched: %v, but the list here says %v", name, shown, !ok)
		}
		delete(unseen, name)
	}
	for name := range unseen {
		t.Errorf("there is no metric %s", name)
	}
}

func TestPanelsDoNotLieOnEachOther(t *testing.T) {
	ids, taken := map[int]string{}, map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		if p.Title == "" || p.ID == 0 || ids[p.ID] != "" {
			t.Errorf("panel %d %q: no title, no id, or that of %q", p.ID, p.Title, ids[p.ID])
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q is not within the 24 columns: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" && other != p.Title {
					t.Fatalf("panel %q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
