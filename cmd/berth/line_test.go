package main

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestArrange_PutsFlagsInFrontOfArguments(t *testing.T) {
	for _, tc := range []struct{ line, want string }{
		{"pools list", "pools list"},
		{"pools list -o json", "-o json pools list"},
		{"--output=json pools list --prefix /x/", "--output=json --prefix /x/ pools list"},
		{"pools set db 3 --lease-duration 1m", "pools set --lease-duration 1m -- db 3"},
		{"pools set db -1", "pools set -- db -1"},
		{"pools set --reserve-after -1 db 0", "pools set --reserve-after -1 -- db 0"},
		{"pools info list", "pools info -- list"},
		{"pools info -- -odd", "pools info -- -odd"},
		{"exec --pool a -- cmd --pool b -o x", "exec --pool a -- cmd --pool b -o x"},
		{"exec --pool a cmd --pool b -o x", "exec --pool a -- cmd --pool b -o x"},
		{"exec --pool a -o json -- cmd", "-o json exec --pool a -- cmd"},
		{"exec -- exec -- x", "exec -- exec -- x"},
		{"apply -f - --prune", "apply -f - --prune"},
		{"help", "--help"},
		{"help pools set", "pools set --help"},
		{"pools help set", "pools set --help"},
		{"pools set help 3", "pools set -- help 3"},
		{"--version", "version"},
		{"--version -o json", "-o json version"},
		{"pools lst -o json", "-o json pools -- lst"},
		{"pools list --wrong x", "pools list --wrong -- x"},
		{"pools --wrong x list", "pools --wrong -- x list"},
		{"--wrong x pools list", "--wrong -- x pools list"},
		{"pools lst --wrong x", "pools -- lst x --wrong"},
		{"pools lst --wrong", "pools -- lst --wrong"},
		{"pools lst -o json --prefix", "-o json pools -- lst"},
		{"--wrong=x lst --worse", "-- lst --wrong=x --worse"},
		{"exce --pool a -- cmd -x", "-- exce a cmd -x --pool"},
		{"pools lst --help", "pools --help"},
		{"pools list -o", "-o"},
		{"pools set db 3 --lease-duration", "pools set --lease-duration"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			line := append([]string{"berth"}, strings.Fields(tc.line)...)
			got := arrange(newApp(io.Discard, io.Discard), line)
			if diff := cmp.Diff("berth "+tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestArrange_TellsThatNothingIsBehindTheDashes(t *testing.T) {
	for line, want := range map[string]bool{
		"submit --": true, "submit --name x --": true, "submit": false, "submit --name --": false, "submit -- x": false, "exec --pool a -- --": false,
	} {
		app := newApp(io.Discard, io.Discard)
		arrange(app, append([]string{"berth"}, strings.Fields(line)...))
		if got := app.Metadata[metaNothing] == true; got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

func TestArrange_LosesNothingOfACommandLine(t *testing.T) {
	word := rapid.SampledFrom([]string{
		"pools", "set", "exec", "list", "db", "-1", "-", "--pool", "a=1", "-o", "json", "--wrong", "--prefix=/x/", "x",
	})
	rapid.Check(t, func(t *rapid.T) {
		words := append(rapid.SliceOf(word).Draw(t, "words"), "end")
		got := arrange(newApp(io.Discard, io.Discard), append([]string{"berth"}, words...))
		count := map[string]int{}
		for _, w := range words {
			count[w]++
		}
		for _, w := range got[1:] {
			if w != "--" {
				count[w]--
			}
		}
		for w, n := range count {
			if n != 0 {
				t.Fatalf("%d of %q too few in %q", n, w, got)
			}
		}
	})
}

func TestComplete_OffersWhatFits(t *testing.T) {
	for _, tc := range []struct{ line, want string }{
		{"", "dev server sidecar coordinator worker exec submit queue runs steps limits source pools claims hosts ready actions auth token apply export verify bench upgrade cluster certs version completion"},
		{"po", "pools"},
		{"pools ", "list info set delete pause resume"},
		{"pools s", "set"},
		{"pools set db ", ""},
		{"pools set --res", "--reserve-after"},
		{"pools list --pre", "--prefix"},
		{"-o ", "table json yaml name"},
		{"-o j", "json"},
		{"--prefix ", ""},
		{"pools list --output y", "yaml"},
		{"exec --pool a -- ", ""},
		{"exec --pool a cmd --", ""},
		{"exec --verb", "--verbose"},
		{"coordinator ", "status"},
		{"coordinator --tick", "--tick-interval"},
		{"runs list --status s", "storing succeeded"},
		{"runs ", "list info why logs events wait cancel retry"},
		{"runs info --w", "--watch"},
		{"submit --it", "--items"},
		{"submit --items days.txt -- ", ""},
		{"nonsense ", ""},
	} {
		t.Run(tc.line, func(t *testing.T) {
			var got []string
			for _, c := range complete(newApp(io.Discard, io.Discard), strings.Split(tc.line, " ")) {
				got = append(got, c.word)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
