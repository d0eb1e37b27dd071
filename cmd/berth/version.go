package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// release is set by make build, to what git says of the checkout: -ldflags "-X main.release=v1.2.3".
var release string

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:     "version",
		Category: helping,
		Usage:    "tell which berth this is",
		Action: func(c *cli.Context) error {
			if _, err := args(c); err != nil {
				return err
			}
			p, err := printerOf(c)
			if err != nil {
				return err
			}
			r := versionRecord{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return p.print(r, func(out *page) {
				out.line("berth %s (%s, %s)", r.Version, r.Go, r.Platform)
			})
		},
	}
}

type versionRecord struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// version is that of this build.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(release, info)
}

// unknownVersion is what Go calls the version of a build that it knows nothing of.
const unknownVersion = "(devel)"

// versionOf is the release; or the version of the module, which Go derives from the
// revision in a checkout; or the revision, if it has not.
func versionOf(release string, info *debug.BuildInfo) string {
	if release != "" || info == nil {
		return cmp.Or(release, unknownVersion)
	}
	if v := info.Main.Version; v != "" && v != unknownVersion {
		return v
	}
	revision, suffix := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), revisionLen)]
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "+dirty"
		}
	}
	if revision == "" {
		return unknownVersion
	}
	return revision + suffix
}

// revisionLen is how much of a revision Go's own versions have.
const revisionLen = 12
