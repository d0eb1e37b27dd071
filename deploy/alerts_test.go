package deploy_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
)

const runbooks = "https://github.com/berthhq/berth/blob/main/deploy/README.md#"

// alerts reads the rules as Prometheus does.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	file, errs := rulefmt.ParseFile("prometheus/alerts.yaml", false, model.UTF8Validation)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	var all []rulefmt.Rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

var (
	alertName = regexp.MustCompile(`^Berth([A-Z][a-z]+)+$`)
	usedLabel = regexp.MustCompile(`\$labels\.([a-z_]+)`)
)

// checkAlert returns what is wrong with a rule.
func checkAlert(r rulefmt.Rule, metrics catalog) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if !alertName.MatchString(r.Alert) {
		complain("alert: the name is not like BerthNoLeader")
	}
	labels, err := checkExpr(r.Expr, metrics)
	if err != nil {
		complain("expr: %v", err)
	}
	if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) || len(r.Labels) != 1 {
		complain("labels: the only label is severity: critical, warning or info")
	}
	for _, name := range []string{"summary", "description", "runbook_url"} {
		if strings.TrimSpace(r.Annotations[name]) == "" {
			complain("annotations: %s is missing", name)
		}
	}
	if len(r.Annotations) != 3 {
		complain("annotations: there are others than summary, description and runbook_url")
	}
	if want := runbooks + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
		complain("runbook_url: it is not %s", want)
	}
	for name, text := range r.Annotations {
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
		for _, wrong := range checkAlert(r, metrics) {
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
	good := func() rulefmt.Rule {
		return rulefmt.Rule{
			Alert: "BerthOne", Expr: `sum by (job, pool) (a) > 1`, Labels: map[string]string{"severity": "info"},
			Annotations: map[string]string{
				"summary": "{{ $labels.pool }} has {{ $value | humanize }}", "description": "d", "runbook_url": runbooks + "berthone",
			},
		}
	}
	if wrong := checkAlert(good(), some); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for why, change := range map[string]func(*rulefmt.Rule){
		"the name is not":        func(r *rulefmt.Rule) { r.Alert = "one" },
		"no metric":              func(r *rulefmt.Rule) { r.Expr = "nothing > 1" },
		"the only label":         func(r *rulefmt.Rule) { r.Labels["severity"] = "bad" },
		"description is missing": func(r *rulefmt.Rule) { r.Annotations["description"] = " " },
		"others than":            func(r *rulefmt.Rule) { r.Annotations["more"] = "x" },
		"it is not":              func(r *rulefmt.Rule) { r.Annotations["runbook_url"] += "s" },
		"no label instance":      func(r *rulefmt.Rule) { r.Annotations["summary"] = "{{ $labels.instance }}" },
	} {
		r := good()
		change(&r)
		if wrong := strings.Join(checkAlert(r, some), "; "); !strings.Contains(wrong, why) {
			t.Errorf("complaints %q, want %q", wrong, why)
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
	for _, path := range []string{"README.md", "../docs/how-to/monitoring.md", "../docs/reference/source-files.md"} {
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
