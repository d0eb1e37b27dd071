package config

import (
	"regexp"
	"slices"
	"strings"
)

// Variables returns the names of the environment variables that give settings.
func Variables() []string {
	all := []string{FileEnv}
	for _, f := range fields {
		all = append(all, f.Env())
	}
	return all
}

// others are further variables of berth: those that the commands of exec, of steps and of sources get, and
// those of systemd's units and of tests.
var others = []string{
	"BERTH_CLAIM_ID", "BERTH_FENCE", "BERTH_POOLS",
	"BERTH_RUN_ID", "BERTH_STEP", "BERTH_INDEX", "BERTH_ATTEMPT", "BERTH_INPUT", "BERTH_SOURCE",
	"BERTH_OPTIONS", "BERTH_BROWSER", "BERTH_LONG", "BERTH_SCHEDULES", "BERTH_BIN", "BERTH_UPDATE", "BERTH_SEED", "BERTH_COMPOSE_TEST",
}

// ofService matches the variables that Kubernetes sets in each container for a service whose name begins with
// berth, after the prefix.
var ofService = regexp.MustCompile(`(^|_)(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// Unknown returns the names of the variables in an environment that begin as those of berth do, or are those of berth in
// lower case letters, are not empty, and mean nothing to it.
func Unknown(env []string) []string {
	known := append(Variables(), others...)
	var unknown []string
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		rest, ours := strings.CutPrefix(name, VariablePrefix)
		// In other letters, it is ours only if a variable of berth was meant.
		ours = ours || slices.Contains(known, strings.ToUpper(name))
		if !ours || value == "" || slices.Contains(known, name) {
			continue
		}
		if !strings.HasPrefix(rest, "TEST_") && !ofService.MatchString(rest) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
