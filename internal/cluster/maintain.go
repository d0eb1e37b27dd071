package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"
	"github.com/dustin/go-humanize"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/problem"
)

const (
	// defragTimeout is the longest time to defragment one member, which rewrites its database: some
	// seconds per gigabyte.
	defragTimeout = 10 * time.Minute
	// maxLag is how many changes a member may be behind the leader and still count as up to date. A
	// cluster under load has this many changes in flight.
	maxLag = 1000
	// fullPercent is the percentage of the quota above which a member counts as full.
	fullPercent = 80
)

// Defragmented is the size of a member's database before and after, in bytes.
type Defragmented struct {
	Name   string `json:"name"`
	Before int64  `json:"before_bytes"`
	After  int64  `json:"after_bytes"`
	// Skipped is why the member was not defragmented, empty if it was.
	Skipped string `json:"skipped,omitempty"`
}

// Defrag defragments the databases of the members, one at a time and the leader last, because a
// member answers no requests while it is defragmented. It skips learners, and members that have not started. It waits until a member is up to date before
// it continues with the next one, and calls done for each member. At the end, it clears the
// NOSPACE alarms, or returns [problem.EtcdFull] if a member is still full.
func (c *Client) Defrag(ctx context.Context, done func(Defragmented)) error {
	s, err := c.working(ctx)
	if err != nil {
		return err
	}
	order := slices.Clone(s.Members)
	slices.SortStableFunc(order, func(a, b MemberStatus) int {
		switch {
		case a.Leader == b.Leader:
			return 0
		case a.Leader:
			return 1
		}
		return -1
	})
	for _, m := range order {
		if m.Status == Unreachable && m.voter {
			return problem.New(problem.Precondition, "member %s does not answer: repair or replace it first", m.label())
		}
	}
	for _, m := range order {
		if why := m.skipped(); why != "" {
			done(Defragmented{Name: m.label(), Before: m.DBBytes, After: m.DBBytes, Skipped: why})
			continue
		}
		if err := c.defragment(ctx, &m, done); err != nil {
			return err
		}
	}
	return c.disarm(ctx)
}

// skipped returns why a member can't be defragmented now, empty if it can.
func (m *MemberStatus) skipped() string {
	switch {
	case m.Status == New:
		return "it has not started"
	case !m.voter:
		return "it is a learner, which refuses this until it has the data of the cluster, and a vote"
	}
	return ""
}

func (c *Client) defragment(ctx context.Context, m *MemberStatus, done func(Defragmented)) error {
	at := m.at
	one, err := c.at(at)
	if err != nil {
		return err
	}
	defer one.Close()
	try, cancel := context.WithTimeout(ctx, defragTimeout)
	defer cancel()
	if _, err := one.etcd.Defragment(try, at); err != nil {
		return one.problem(err, fmt.Sprintf("the defragmentation of member %s did not finish", m.label()))
	}
	for {
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		now, err := s.Find(m.ID)
		if err != nil {
			return err
		}
		if now.Status != Unreachable && now.Lag <= maxLag {
			done(Defragmented{Name: m.label(), Before: m.DBBytes, After: now.DBBytes})
			return nil
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// disarm clears the NOSPACE alarms, unless a member with such an alarm is still full.
func (c *Client) disarm(ctx context.Context) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, m := range s.Members {
		if slices.Contains(m.Alarms, alarmSpace) && m.isFull() {
			return problem.New(problem.EtcdFull, "member %s still uses %s of %s, so the alarm stays: compact etcd, or delete keys", m.label(), humanize.IBytes(uint64(m.UsedBytes)), humanize.IBytes(uint64(m.QuotaBytes)))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.etcd.AlarmList(ctx)
	if err != nil {
		return c.problem(err, "the alarms can't be listed")
	}
	for _, a := range list.Alarms {
		if strings.Contains(a.Alarm.String(), "NOSPACE") {
			if _, err := c.etcd.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
				return c.problem(err, "the alarm stays")
			}
		}
	}
	return nil
}

func (m *MemberStatus) isFull() bool {
	return m.QuotaBytes > 0 && m.UsedBytes*100 > m.QuotaBytes*fullPercent
}

// Check is the result of one check before an upgrade.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says what was found, and what to do if the check failed.
	Detail string `json:"detail"`
}

// CheckUpgrade checks whether the servers of a cluster can be upgraded to this build, one at a
// time, without an interruption.
func CheckUpgrade(s *Status) []Check {
	return []Check{s.checkMembers(), s.checkAlarms(), s.checkSpace(), s.checkLag(), s.checkVersions(version.Version)}
}

func (s *Status) checkMembers() Check {
	c := Check{Name: "members", OK: true, Detail: fmt.Sprintf("all %d answer", s.Voters)}
	if s.Voters < 3 {
		c.Detail += ", but with fewer than 3 the cluster is interrupted while one restarts"
	}
	for _, m := range s.Members {
		if m.Status != Healthy {
			c.OK, c.Detail = false, fmt.Sprintf("%s is %s: %s first", m.label(), m.Status, m.todo())
		}
	}
	return c
}

// todo is what to do about a member that is not healthy.
func (m *MemberStatus) todo() string {
	switch m.Status {
	case Learner:
		return "wait until it has a vote"
	case New:
		return "start it"
	case NoLeader:
		return "wait for an election, or start the other members,"
	}
	return "repair or replace it"
}

func (s *Status) checkAlarms() Check {
	c := Check{Name: "alarms", OK: true, Detail: "none"}
	for _, m := range s.Members {
		if len(m.Alarms) > 0 {
			c.OK, c.Detail = false, fmt.Sprintf("%s reports %s", m.label(), strings.Join(m.Alarms, " and "))
		}
	}
	return c
}

func (s *Status) checkSpace() Check {
	c := Check{Name: "space", OK: true, Detail: fmt.Sprintf("at most %d%% of the quota is in use", fullPercent)}
	for _, m := range s.Members {
		if m.isFull() {
			c.OK, c.Detail = false, fmt.Sprintf("%s uses %s of %s: compact and defragment first", m.label(), humanize.IBytes(uint64(m.UsedBytes)), humanize.IBytes(uint64(m.QuotaBytes)))
		}
	}
	return c
}

func (s *Status) checkLag() Check {
	c := Check{Name: "lag", OK: true, Detail: "all are up to date"}
	for _, m := range s.Members {
		if m.Lag > maxLag {
			c.OK, c.Detail = false, fmt.Sprintf("%s is %d changes behind the leader: wait until it is up to date", m.label(), m.Lag)
		}
	}
	return c
}

// checkVersions compares the etcd versions of the members with next. The members of a cluster may
// differ by one minor version.
func (s *Status) checkVersions(next string) Check {
	c := Check{Name: "versions", OK: true}
	var all []string
	to := semver.New(next)
	for _, m := range s.Members {
		from, err := semver.NewVersion(m.Version)
		if err != nil {
			continue // it does not answer, which checkMembers reports
		}
		if !slices.Contains(all, m.Version) {
			all = append(all, m.Version)
		}
		switch {
		case from.Major != to.Major || to.Minor > from.Minor+1:
			c.OK, c.Detail = false, fmt.Sprintf("%s runs etcd %s, this build has %s: upgrade by one minor version at a time", m.label(), m.Version, next)
			return c
		case to.LessThan(*from) && to.Minor < from.Minor:
			c.OK, c.Detail = false, fmt.Sprintf("%s runs etcd %s, which is newer than etcd %s of this build: an older etcd can't read a newer data directory", m.label(), m.Version, next)
			return c
		}
	}
	slices.Sort(all)
	c.Detail = fmt.Sprintf("etcd %s, and %s in this build", strings.Join(all, " and "), next)
	return c
}
