package main

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/instance"
)

func TestNoTimeInTheSettingsIsNoneAndNotTheDefault(t *testing.T) {
	o, err := options(config.Settings{}, hclog.NewNullLogger())
	if err != nil || o.ClaimTimeout >= 0 || o.PollInterval >= 0 || o.PollJitter >= 0 {
		t.Errorf("%s, %s and %s, %v", o.ClaimTimeout, o.PollInterval, o.PollJitter, err)
	}
	o, err = options(config.Settings{ClaimTimeout: time.Minute}, hclog.NewNullLogger())
	if err != nil || o.ClaimTimeout != time.Minute {
		t.Errorf("%s, %v", o.ClaimTimeout, err)
	}
}

// TestTheSettingsAllowTheWaitsThatCanBeAskedFor holds the bound of the settings,
// which know nothing of berth, against that of waits.
func TestTheSettingsAllowTheWaitsThatCanBeAskedFor(t *testing.T) {
	for wait, want := range map[time.Duration]bool{0: true, instance.MaxWait: true, instance.MaxWait + 1: false, -1: false} {
		var err error
		app := &cli.App{Name: "berth", Flags: config.Flags(config.Claims), Action: func(c *cli.Context) error {
			_, err = config.Load(config.FromCLI(c), config.Claims)
			return nil
		}}
		if err := app.Run([]string{"berth", "--claim-timeout=" + wait.String()}); err != nil {
			t.Fatal(err)
		}
		if (err == nil) != want || (instance.ValidateWait(wait) == nil) != want {
			t.Errorf("%s: %v in the settings, %v as a wait", wait, err, instance.ValidateWait(wait))
		}
	}
}

func TestTheRestOfAWaitIsSentInMilliseconds(t *testing.T) {
	for wait, most := range map[time.Duration]time.Duration{
		0: 0, time.Microsecond: time.Microsecond, 25 * time.Hour: 25 * time.Hour, instance.MaxWait: instance.MaxWait,
	} {
		begun := time.Now()
		got := restOf(wait, begun)
		if least := max(0, wait-time.Since(begun)); got < least || got > most || got > time.Millisecond && got%time.Millisecond != 0 {
			t.Errorf("of %s there is %s", wait, got)
		}
	}
	if got := restOf(time.Minute, time.Now().Add(-time.Hour)); got != 0 {
		t.Errorf("of one that is over there is %s", got)
	}
}
