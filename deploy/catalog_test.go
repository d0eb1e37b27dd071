package deploy_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metricRow is one in the tables of metrics of the pages.
var metricRow = regexp.MustCompile("(?m)^\\| `(berth_[a-z_]+)` \\| (counter|gauge|histogram) \\| ([a-z_, ]*)\\|")

// documented are the metrics that the pages tell of.
func documented(t *testing.T) catalog {
	t.Helper()
	all := catalog{}
	for path, extra := range map[string][]string{"../docs/reference/metrics.md": nil, "../docs/reference/source-files.md": {"source"}} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rows := metricRow.FindAllStringSubmatch(string(text), -1)
		if len(rows) == 0 {
			t.Fatalf("%s has no table of metrics", path)
		}
		for _, m := range rows {
			labels := strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
			all[m[1]] = family{kind: m[2], labels: append(labels, extra...)}
		}
	}
	return all
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (berth_[a-z_]+) ([a-z]+)$`)
	sampleLine = regexp.MustCompile(`^(berth_[a-z_]+)(?:\{(.*)\})? \S+$`)
	labelName  = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
)

// exposed reads the metrics of berth from what a process serves at /metrics.
func exposed(t *testing.T, text string) catalog {
	t.Helper()
	all := catalog{}
	name := "" // of the family that samples are of
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := typeLine.FindStringSubmatch(line); m != nil {
			name = m[1]
			all[name] = family{kind: m[2]}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "berth_") {
				t.Errorf("a sample that can't be read: %s", line)
			}
			continue
		}
		if !strings.HasPrefix(m[1], name) {
			t.Errorf("a sample without a type: %s", line)
		}
		f := all[name]
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" && !slices.Contains(f.labels, l[1]) {
				f.labels = append(f.labels, l[1])
			}
		}
		all[name] = f
	}
	return all
}
