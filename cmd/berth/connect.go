package main

import (
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/config"
)

// connect reaches etcd for an operator's command, and hands it on.
func connect(c *cli.Context, do func(*berth.Admin) error) error {
	s, err := config.Load(config.FromCLI(c), config.Common, config.Etcd)
	if err != nil {
		return err
	}
	o, err := options(s, newLogger(c.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return err
	}
	admin, err := berth.Connect(c.Context, o)
	if err != nil {
		return err
	}
	defer admin.Close()
	return do(admin)
}

// options are the settings in the words of the Go API: where etcd is, who this
// host is, and how claims wait.
func options(s config.Settings, log hclog.Logger) (berth.Options, error) {
	tls, err := s.ClientTLS()
	return berth.Options{
		Endpoints: s.Endpoints, TLS: tls, Username: s.User, Password: s.Password.Reveal(), Prefix: s.Prefix,
		Host: s.Host, Version: version(),
		ClaimTimeout: none(s.ClaimTimeout),
		PollInterval: none(s.ClaimPollInterval), PollJitter: none(s.ClaimPollJitter),
		Logger: log,
	}, err
}

// newLogger logs to stderr at the level of the settings, or at a higher one
// where less is wanted unless somebody asks for more than the default.
func newLogger(w io.Writer, s config.Settings, quiet hclog.Level) hclog.Logger {
	level := hclog.LevelFromString(s.LogLevel)
	if level == hclog.Info {
		level = max(level, quiet)
	}
	return hclog.New(&hclog.LoggerOptions{
		Name: "berth", Level: level, Output: w, JSONFormat: s.LogFormat == "json",
	})
}

// none makes a time of settings, where 0 is none, one of the Go API, where it is
// the default.
func none(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
