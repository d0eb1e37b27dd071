package owner

import (
	"slices"
	"time"
)

// helpEvery is how often it is read who waits for the same as the claims that help.
const helpEvery = time.Second

// help has it read whether another instance has a claim wait for the same as one that helps, for all of them, unless that was
// read just now. It returns when it may be read again.
func (s *surveys) help(now time.Duration) time.Duration {
	if s.helped == 0 || now >= s.helped+helpEvery {
		s.helped, s.helps = max(now, 1), true
	}
	return s.helped + helpEvery
}

// beginHelp begins to read who waits for the same as the claims that help and do not wait in the queue: for others each time
// if they have more pools than one survey reads. It is false if there are none.
func (s *surveys) beginHelp(v *survey) bool {
	s.helps = false
	v.help(slices.DeleteFunc(slices.Clone(s.commits.want.list), func(c *Claim) bool { return !c.request.Helps || c.state != wanted }))
	for i := range v.helps {
		if len(v.named) >= maxSurveyed {
			break
		}
		v.addOthers(v.helps[(int(s.helped/helpEvery)+i)%len(v.helps)].pools)
	}
	return len(v.helps) > 0
}

// decideHelp records which claims that help are alone.
func (s *surveys) decideHelp(v *survey) {
	others := v.state.Others(s.by.Host, s.by.Instance)
	for _, c := range v.helps {
		read := true
		for _, name := range c.pools {
			read = read && v.named[name]
		}
		c.passing.see(read && !others(c.request))
	}
}
