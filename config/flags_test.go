package config

import (
	"bytes"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestFlagsOfACommandAndOfThoseAboveItAreRead(t *testing.T) {
	t.Setenv("BERTH_PREFIX", "/env/")
	t.Setenv("BERTH_ENDPOINTS", "env:1")
	var got Settings
	app := &cli.App{
		Name:  "app",
		Flags: Flags(Common, Etcd),
		Commands: []*cli.Command{{
			Name:  "serve",
			Flags: Flags(Instance, Serve),
			Action: func(c *cli.Context) (err error) {
				got, err = Load(FromCLI(c), Common, Etcd)
				return err
			},
		}},
	}
	path := write(t, "berth.yaml", "prefix: /file/\nlog_level: warn\nlisten: 127.0.0.1:9")
	err := app.Run([]string{"app", "--config", path, "--endpoints", "flag:1,flag:2", "serve", "--listen", "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Prefix != "/env/" || got.LogLevel != "warn" || got.Listen != "127.0.0.1:1" ||
		strings.Join(got.Endpoints, " ") != "flag:1 flag:2" {
		t.Errorf("the settings are\n%s", got)
	}
}

func TestAFlagOfTheCommandItselfIsNoSetting(t *testing.T) {
	var got Settings
	app := &cli.App{Name: "app", Flags: Flags(Common, Etcd), Commands: []*cli.Command{{
		Name:  "submit",
		Flags: []cli.Flag{&cli.StringFlag{Name: "name", Usage: "of a run"}},
		Action: func(c *cli.Context) (err error) {
			got, err = Load(FromCLI(c), Common, Etcd)
			return err
		},
	}}}
	if err := app.Run([]string{"app", "submit", "--name", "Data Load"}); err != nil || got.Name != "" {
		t.Errorf("the name of a server is %q, %v", got.Name, err)
	}
}

func TestASwitchNeedsNoValue(t *testing.T) {
	for text, want := range map[string]bool{"": false, "--coordinator": true, "--coordinator=true": true, "--coordinator=false": false} {
		var got Settings
		app := &cli.App{Name: "app", Flags: Flags(Candidate), Action: func(c *cli.Context) (err error) {
			got, err = Load(FromCLI(c), Candidate)
			return err
		}}
		if err := app.Run(append([]string{"app"}, strings.Fields(text)...)); err != nil {
			t.Fatal(err)
		}
		if got.Coordinator != want {
			t.Errorf("with %q it is %v", text, got.Coordinator)
		}
	}
}

func TestHelpTellsDefaultsAndVariables(t *testing.T) {
	var out bytes.Buffer
	app := &cli.App{
		Name: "app", Writer: &out,
		Flags: Flags(Common, Etcd, Access, Claims, Instance, State, Serve, Candidate, Lead, Work, Dev, Server),
	}
	if err := app.Run([]string{"app", "--help"}); err != nil {
		t.Fatal(err)
	}
	for _, f := range Fields() {
		if f.NoFlag {
			continue
		}
		if !strings.Contains(out.String(), "--"+f.Flag()+" ") || !strings.Contains(out.String(), "[$"+f.Env()+"]") ||
			!strings.Contains(out.String(), f.DefaultText()) {
			t.Errorf("the help lacks --%s, its variable or its default", f.Flag())
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
