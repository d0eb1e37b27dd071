package deploy_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// ruleFile is a file of rules as Prometheus reads it, as far as alerts go.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

const runbooks = "https://github.com/berthhq/berth/blob/main/deploy/README.md#"

// alerts reads the rules.
func alerts(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile("prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parseRules(text []byte) ([]rule, error) {
	var f ruleFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	var all []rule
	groups := map[string]bool{}
	for _, g := range f.Groups {
		if g.Name == "" || groups[g.Name] || len(g.Rules) == 0 {
			return nil, fmt.Errorf("group %q has no name, or that of another, or no rules", g.Name)
		}
		groups[g.Name] = true
		all = append(all, g.Rules...)
	}
	return all, nil
}

var (
	alertName = regexp.MustCompile(`^Berth([A-Z][a-z]+)+$`)
	usedLabel = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	action    = regexp.MustCompile(`\{\{(.*?)\}\}`)
	known     = regexp.MustCompile(`^ \$(?:labels\.[a-z_]+|value(?: \| humanize(?:Duration|Percentage)?)?) $`)
)

// check says what is wrong with a rule.
func (r rule) check(metrics catalog) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if !alertName.MatchString(r.Alert) {
		complain("alert: it is no name such as BerthNoLeader")
	}
	labels, err := checkExpr(r.Expr, metrics)
	if err != nil {
		complain("expr: %v", err)
	}
	if r.For != "" && !span.MatchString(r.For) {
		complain("for: %q is no duration", r.For)
	}
	if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) || len(r.Labels) != 1 {
		complain("labels: there is severity alone: critical, warning or info")
	}
	for _, name := range []string{"summary", "description", "runbook_url"} {
		if strings.TrimSpace(r.Annotations[name]) == "" {
			complain("annotations: there is no %s", name)
		}
	}
	if len(r.Annotations) != 3 {
		complain("annotations: there are others than summary, description and runbook_url")
	}
	if want := runbooks + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
		complain("runbook_url: it is not %s", want)
	}
	for name, text := range r.Annotations {
		for _, m := range action.FindAllStringSubmatch(text, -1) {
			if !known.MatchString(m[1]) {
				complain("%s: {{%s}} is not known", name, m[1])
			}
		}
		for _, m := range usedLabel.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(labels, m[1]) {
				complain("%s: the alert has no label %s, but %s", name, m[1], strings.Join(labels, ", "))
			}
		}
	}
	return wrong
}

func TestTheAlertsAreAboutMetricsThatThereAre(t *testing.T) {
	metrics, seen := documented(t), map[string]bool{}
	for _, r := range alerts(t) {
		for _, wrong := range r.check(metrics) {
			t.Errorf("%s: %s", r.Alert, wrong)
		}
		if seen[r.Alert] {
			t.Errorf("there are two alerts %s", r.Alert)
		}
		seen[r.Alert] = true
	}
	for _, name := range []string{
		"BerthNoLeader", "BerthTickSlow", "BerthPoolFull", "BerthClaimsLost", "BerthEtcdUnreachable",
		"BerthWorkerGone", "BerthQueueGrowing", "BerthWatchResyncs",
	} {
		if !seen[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
}

func TestWrongAlertsAreCaught(t *testing.T) {
	good := func() rule {
		return rule{
			Alert: "BerthOne", Expr: `sum by (job, pool) (a) > 1`, For: "5m", Labels: map[string]string{"severity": "info"},
			Annotations: map[string]string{
				"summary": "{{ $labels.pool }} has {{ $value | humanize }}", "description": "d", "runbook_url": runbooks + "berthone",
			},
		}
	}
	if wrong := good().check(some); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for why, change := range map[string]func(*rule){
		"no name":           func(r *rule) { r.Alert = "one" },
		"no metric":         func(r *rule) { r.Expr = "nothing > 1" },
		"no duration":       func(r *rule) { r.For = "soon" },
		"severity alone":    func(r *rule) { r.Labels["severity"] = "bad" },
		"no description":    func(r *rule) { r.Annotations["description"] = " " },
		"others than":       func(r *rule) { r.Annotations["more"] = "x" },
		"it is not":         func(r *rule) { r.Annotations["runbook_url"] += "s" },
		"no label instance": func(r *rule) { r.Annotations["summary"] = "{{ $labels.instance }}" },
		"{{ $x }} is not":   func(r *rule) { r.Annotations["summary"] = "{{ $x }}" },
		"is not known":      func(r *rule) { r.Annotations["summary"] = "{{ $value | humanise }}" },
		"where a value":     func(r *rule) { r.Expr = "" },
	} {
		r := good()
		change(&r)
		if wrong := strings.Join(r.check(some), "; "); !strings.Contains(wrong, why) {
			t.Errorf("complaints %q, want %q", wrong, why)
		}
	}
	for _, text := range []string{"groups: [{name: a, rules: []}]", "groups: [{rules: [{alert: A}]}]", "groups: [{name: a, rule: []}]", "rules: []"} {
		if all, err := parseRules([]byte(text)); err == nil {
			t.Errorf("%s was taken: %v", text, all)
		}
	}
}

// runbook is the heading of what to do about an alert.
var runbook = regexp.MustCompile(`(?m)^### (Berth\w+)\n\n(\S.*)$`)

func TestEachAlertHasARunbook(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{}
	for _, m := range runbook.FindAllStringSubmatch(string(text), -1) {
		written[m[1]] = true
	}
	for _, r := range alerts(t) {
		if !written[r.Alert] {
			t.Errorf("README.md does not say what to do about %s", r.Alert)
		}
		delete(written, r.Alert)
	}
	for name := range written {
		t.Errorf("README.md has a section %s, and there is no such alert", name)
	}
}

// block is a block of PromQL in a page.
var block = regexp.MustCompile("(?s)```promql\n(.*?)```")

func TestTheExpressionsOfThePagesAreAboutMetricsThatThereAre(t *testing.T) {
	metrics, found := documented(t), 0
	for _, path := range []string{"README.md", "../docs/metrics.md", "../docs/sources.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			for part := range strings.SplitSeq(m[1], "\n\n") {
				expr := regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(part, "")
				if _, err := checkExpr(expr, metrics); err != nil {
					t.Errorf("%s: %s: %v", path, strings.TrimSpace(expr), err)
				}
				found++
			}
		}
	}
	if found == 0 {
		t.Error("there are none")
	}
}
