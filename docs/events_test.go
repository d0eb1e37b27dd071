package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// eventName is the name of an event, as the constants of its type have it.
	eventName = regexp.MustCompile(`(?m)EventType = "([A-Za-z]+)"`)
	// logLine is a log line of a process about itself: the part, and the message.
	logLine = regexp.MustCompile(`^(source|worker): ([a-z ]+)$`)
	quoted  = regexp.MustCompile("`([^`]+)`")
)

// The table names only events, logs and metrics that exist, and names every event of a
// step.
func TestEventsPageNamesWhatExists(t *testing.T) {
	page := read(t, "reference/events.md")
	_, rest, _ := strings.Cut(page, "<!-- reports -->\n")
	table, _, ended := strings.Cut(rest, "<!-- end of reports -->")
	if !ended {
		t.Fatal("reference/events.md has no such table")
	}
	var events []string
	for _, m := range eventName.FindAllStringSubmatch(read(t, "../coordinator/run/event.go"), -1) {
		events = append(events, m[1])
	}
	sources, err := filepath.Glob("../sidecar/source/*.go")
	if err != nil {
		t.Fatal(err)
	}
	metrics := append(metricNames(t, "reference/metrics.md"), metricNames(t, sources...)...)
	var named []string
	for _, m := range quoted.FindAllStringSubmatch(table, -1) {
		name := m[1]
		named = append(named, name)
		switch line := logLine.FindStringSubmatch(name); {
		case strings.HasPrefix(name, "berth_"):
			if !slices.Contains(metrics, name) {
				t.Errorf("there is no metric %s", name)
			}
		case strings.HasPrefix(name, "berth "): // a command
		case line != nil:
			if !strings.Contains(read(t, "../cmd/berth/"+line[1]+".go"), `.Info("`+line[2]+`", `) {
				t.Errorf("no log line is %q", name)
			}
		case !slices.Contains(events, name):
			t.Errorf("there is no event %s", name)
		}
	}
	for _, name := range events {
		if strings.HasPrefix(name, "Step") && !slices.Contains(named, name) {
			t.Errorf("the table does not name event %s", name)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
