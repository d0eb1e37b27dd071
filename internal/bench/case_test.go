package bench

import (
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCasesAreSelected(t *testing.T) {
	tests := map[string]struct {
		config Config
		want   []string
	}{
		"by name": {
			Config{Cases: regexp.MustCompile(`^contended/go/16c`)},
			[]string{"contended/go/16c/1h/1p", "contended/go/16c/1h/2p", "contended/go/16c/4h/1p", "contended/go/16c/4h/2p"},
		},
		"no more hosts than clients, and a slot at least": {
			Config{Clients: []int{2}, Hosts: []int{1, 2, 3}, Cases: regexp.MustCompile(`contended/.*/1p`)},
			[]string{"uncontended/go/2c/1h/1p", "uncontended/go/2c/2h/1p"},
		},
		"the main ones": {
			Config{Quick: true, Cases: regexp.MustCompile(`256c`)},
			[]string{"uncontended/go/256c/1h/1p", "uncontended/go/256c/4h/1p", "contended/go/256c/1h/1p", "contended/go/256c/4h/1p", "full/go/256c/1h/1p", "full/go/256c/4h/1p"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := test.config
			rows, err := c.Rows()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, row := range rows {
				got = append(got, row.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestEachMainCaseExists(t *testing.T) {
	c := Config{Quick: true, Sidecars: fakeSidecars{}, History: minHistory}
	rows, err := c.Rows()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range rows {
		got = append(got, row.Name)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(mainCases)), slices.Sorted(slices.Values(got))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
