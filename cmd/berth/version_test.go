package main

import (
	"runtime/debug"
	"testing"
)

func TestABuildReportsTheVersionOfItsModuleOrTheRevisionOfItsCheckout(t *testing.T) {
	settings := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{
			{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "75ece6f283e267b1804cead8655d7d561309a913"}, {Key: "vcs.modified", Value: modified},
		}
	}
	for what, test := range map[string]struct {
		release string
		info    *debug.BuildInfo
		want    string
	}{
		"a release":                   {"v1.2.3", &debug.BuildInfo{Main: debug.Module{Version: "v1.0.0"}, Settings: settings("true")}, "v1.2.3"},
		"installed as a module":       {"", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3"},
		"a checkout that Go versions": {"", &debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20261122120000-75ece6f283e2"}, Settings: settings("false")}, "v0.0.0-20261122120000-75ece6f283e2"},
		"a checkout":                  {"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: settings("false")}, "75ece6f283e2"},
		"a changed checkout":          {"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: settings("true")}, "75ece6f283e2+dirty"},
		"no more than source":         {"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "(devel)"},
		"a short revision":            {"", &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "7"}}}, "7"},
		"nothing known":               {"", nil, "(devel)"},
	} {
		if got := versionOf(test.release, test.info); got != test.want {
			t.Errorf("%s is %q, not %q", what, got, test.want)
		}
	}
}
