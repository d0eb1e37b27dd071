package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/pool"
)

func TestHuman_WritesDurationsInTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "2ms", 250 * time.Millisecond: "250ms",
		time.Second: "1s", 90 * time.Second: "1m30s", 5 * time.Minute: "5m",
		90 * time.Minute: "1h30m", time.Hour + time.Second: "1h", 26 * time.Hour: "1d2h",
		-5 * time.Second: "-5s", 24 * time.Hour: "1d",
	} {
		if got := human(d); got != want {
			t.Errorf("human(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestAgo_CountsFromNow(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "now", -time.Hour: "now", 999 * time.Millisecond: "now", 3 * time.Second: "3s ago",
		3*time.Minute + 4*time.Second: "3m4s ago", 12*time.Minute + 4*time.Second: "12m ago",
		50 * time.Hour: "2d2h ago", 49*time.Hour + 40*time.Minute: "2d2h ago",
	} {
		if got := ago(now, now.Add(-d)); got != want {
			t.Errorf("ago(%s) = %q, want %q", d, got, want)
		}
	}
	if got := ago(now, time.Time{}); got != "" {
		t.Errorf("no time at all is %q", got)
	}
}

func TestPage_LinesUpColumnsAndShowsNoControlCharacters(t *testing.T) {
	var b bytes.Buffer
	out := &page{out: &b}
	out.table("nothing", []string{"POOL", "RUN", "N"}, [][]string{
		{"a", "evil\x1b[2J\trun\n", "1"},
		{"longer-name", "", "22"},
	})
	want := "" +
		"POOL         RUN            N\n" +
		"a            evil?[2J?run?  1\n" +
		"longer-name  -              22\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	b.Reset()
	out.table("nothing", []string{"POOL"}, nil)
	if b.String() != "nothing\n" {
		t.Errorf("an empty table is %q", b.String())
	}
}

func TestPrinter_WritesYAMLWithTheNamesAndTheOrderOfJSON(t *testing.T) {
	value := struct {
		Zeta  string         `json:"zeta"`
		Alpha []int          `json:"alpha"`
		None  []string       `json:"none"`
		Pools map[string]int `json:"pools"`
		Text  string         `json:"text"`
		Odd   string         `json:"odd"`
	}{"5m0s", []int{1, 2}, []string{}, map[string]int{"b": 1, "a": 2}, "no", "a: <b> & \"c\"\n#d"}
	var b bytes.Buffer
	if err := (&printer{format: "yaml", out: &b}).print(value, nil); err != nil {
		t.Fatal(err)
	}
	want := "zeta: 5m0s\nalpha:\n  - 1\n  - 2\nnone: []\npools:\n  a: 2\n  b: 1\ntext: \"no\"\nodd: |-\n  a: <b> & \"c\"\n  #d\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestWaitText_SaysWhyAndWhere(t *testing.T) {
	full := pool.Reason{
		Text: "pool 'db' full (3/3 slots)", Position: 2, Line: 5, Pools: []pool.Shortage{{Pool: "db"}},
	}
	if got, want := waitText(full), "waiting for pool 'db' full (3/3 slots), position 2 of 5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	paused := pool.Reason{Text: "pool 'db' is paused", Position: 1, Line: 1, Pools: []pool.Shortage{{Pool: "db"}}}
	if got, want := waitText(paused), "waiting: pool 'db' is paused, position 1 of 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	turn := pool.Reason{Text: "waiting its turn", Position: 1, Line: 2}
	if got, want := waitText(turn), "waiting its turn, position 1 of 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
