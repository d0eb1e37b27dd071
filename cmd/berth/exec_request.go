package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/pool"
)

// execRequest reads what the flags of exec ask for. What can't be read is a
// usage error, what can't be asked for a problem.
func execRequest(c *cli.Context, wait time.Duration) (pool.Request, error) {
	r := pool.Request{
		ID:       c.String("id"),
		Priority: c.Int("priority"),
		Wait:     wait,
		Holder:   pool.Holder{Run: c.String("run"), Step: c.String("step")},
	}
	if !c.Args().Present() {
		return r, usagef("exec needs a command to run: berth exec --pool POOL=SLOTS -- COMMAND")
	}
	var err error
	if len(c.StringSlice("pool")) == 0 {
		return r, usagef("exec needs a pool: --pool POOL=SLOTS, or --pool POOL for one slot")
	}
	if r.Slots, err = parseSlots(c.StringSlice("pool")); err != nil {
		return r, err
	}
	if r.Holder.Labels, err = parsePairs("label", c.StringSlice("label")); err != nil {
		return r, err
	}
	if c.IsSet("wait") {
		if r.Wait, err = time.ParseDuration(c.String("wait")); err != nil {
			return r, usagef("--wait can't be %q: it is a duration such as 30s, 10m or 1h30m, or 0", c.String("wait"))
		}
	}
	if err := berth.ValidateWait(r.Wait); err != nil {
		return r, err
	}
	if !c.IsSet("id") {
		r.ID = ulid.Make().String()
	}
	return r, r.Validate()
}

// parseSlots reads POOL=SLOTS, or POOL for one slot, each.
func parseSlots(texts []string) (map[string]int, error) {
	slots := map[string]int{}
	for _, text := range texts {
		name, number, given := strings.Cut(text, "=")
		n := 1
		if given {
			var err error
			if n, err = strconv.Atoi(number); err != nil {
				return nil, usagef("--pool can't be %q: behind the = belongs a number of slots", text)
			}
		}
		if _, twice := slots[name]; twice {
			return nil, usagef("--pool names %q twice: add the slots up", name)
		}
		slots[name] = n
	}
	return slots, nil
}
