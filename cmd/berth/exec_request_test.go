package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSlots_ReadsPoolsWithAndWithoutANumber(t *testing.T) {
	for _, tc := range []struct {
		texts []string
		want  map[string]int
	}{
		{[]string{"a"}, map[string]int{"a": 1}},
		{[]string{"a=2", "b"}, map[string]int{"a": 2, "b": 1}},
		{[]string{"a=-2"}, map[string]int{"a": -2}}, // read here, refused with its range later
		{[]string{"=3"}, map[string]int{"": 3}},
		{nil, map[string]int{}},
		{[]string{"a="}, nil},
		{[]string{"a=x"}, nil},
		{[]string{"a=1.5"}, nil},
		{[]string{"a=1", "a=2"}, nil},
		{[]string{"a=99999999999999999999"}, nil},
	} {
		got, err := parseSlots(tc.texts)
		if (err != nil) != (tc.want == nil) {
			t.Errorf("%q: error %v", tc.texts, err)
		}
		if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
			t.Errorf("%q: -want +got\n%s", tc.texts, diff)
		}
	}
}

func TestParseLabels_ReadsKeysAndValues(t *testing.T) {
	got, err := parsePairs("label", []string{"team=a,b", "empty=", "url=x=y"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"team": "a,b", "empty": "", "url": "x=y"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, bad := range [][]string{{"team"}, {"=x"}, {"a=1", "a=2"}} {
		if _, err := parsePairs("label", bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
