package main

import (
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// release is set by release builds: -ldflags "-X main.release=v1.2.3".
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

// version is the release, or what the build knows about its source.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
