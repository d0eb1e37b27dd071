package dispatch

import "time"

const (
	// crowded is how many instances with demands in the last second are a crowd: while there is one, a pool stays pending.
	// Else it stops and becomes pending with each claim.
	crowded = 16
	// crowdFor is for how long an instance counts at least; it counts for twice that at most.
	crowdFor = time.Second
)

// crowd is the instances that had demands in a pool.
type crowd struct {
	now, before map[instance]bool
	began       time.Duration
}

// add records that an instance has put demands.
func (c *crowd) add(of instance, now time.Duration) {
	if c.age(now); c.now == nil {
		c.now = map[instance]bool{}
	}
	c.now[of] = true
}

func (c *crowd) age(now time.Duration) {
	if past := now - c.began; past >= 2*crowdFor {
		c.now, c.before, c.began = nil, nil, now
	} else if past >= crowdFor {
		c.now, c.before, c.began = nil, c.now, now
	}
}

// many reports whether it is a crowd, and until when at least.
func (c *crowd) many(now time.Duration) (until time.Duration, many bool) {
	c.age(now)
	n := len(c.now)
	for of := range c.before {
		if !c.now[of] {
			n++
		}
	}
	return c.began + crowdFor, n > crowded
}
