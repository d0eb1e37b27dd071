package store

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// DefaultPrefix is the prefix of all keys unless the settings name another.
const DefaultPrefix = "/berth/"

// Keys spells every key that berth writes, under one prefix. No other place
// spells any.
type Keys struct{ prefix, pools string }

// NewKeys returns the keys under prefix, to which a closing slash is added
// where it has none.
func NewKeys(prefix string) Keys {
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return Keys{prefix: prefix, pools: prefix + "pools/"}
}

// Prefix returns the prefix of all keys.
func (k Keys) Prefix() string { return k.prefix }

// Pools is the prefix of all pools. All keys of a pool have one prefix, so that one watch sees
// them in their order, of all pools or of one.
func (k Keys) Pools() string { return k.pools }

// Pool is the prefix of all keys of one pool.
func (k Keys) Pool(pool string) string { return k.pools + pool + "/" }

// Spec is the key of a pool's spec.
func (k Keys) Spec(pool string) string { return k.pools + pool + "/spec" }

// Slots is the prefix of all slot keys of a pool.
func (k Keys) Slots(pool string) string { return k.pools + pool + "/slots/" }

// DemandsAll is the prefix of the demands of all instances in a pool.
func (k Keys) DemandsAll(pool string) string { return k.pools + pool + "/demands/" }

// PendingAll is the prefix of the keys that exist while claims wait for a pool.
func (k Keys) PendingAll() string { return k.prefix + "pending/" }

// Pending is the one of a pool.
func (k Keys) Pending(pool string) string { return k.PendingAll() + pool }

// IDs is the prefix of the keys of claims whose ids their users have chosen.
func (k Keys) IDs() string { return k.prefix + "ids/" }

// ID is the key of one such claim.
func (k Keys) ID(claim string) string { return k.IDs() + claim }

// OffersAll is the prefix of the offers to all instances.
func (k Keys) OffersAll() string { return k.prefix + "offers/" }

// OffersTo is the prefix of those to the instances of a host.
func (k Keys) OffersTo(host string) string { return k.OffersAll() + host + "/" }

// DispatcherRange is the range of all keys that a dispatcher follows, from the first offers to the last key of a pool. It
// also has what is pending, and nothing else: one watch shows them all in their order.
func (k Keys) DispatcherRange() KeyRange { return KeyRange{k.OffersAll(), Prefix(k.pools).End} }

// Dispatcher is the prefix of the keys that say who dispatches.
func (k Keys) Dispatcher() string { return k.prefix + "dispatcher/" }

// Layout is the key that has the version of the layout.
func (k Keys) Layout() string { return k.prefix + "layout" }

// Hosts is the prefix of the presence keys of all instances.
func (k Keys) Hosts() string { return k.prefix + "hosts/" }

// Instances is the prefix of the presence keys of a host's instances.
func (k Keys) Instances(host string) string { return k.Hosts() + host + "/" }

// Presence is the key that shows that an instance is alive.
func (k Keys) Presence(host, instance string) string {
	return k.Hosts() + host + "/" + instance
}

// Leases is the prefix of the leases that a host can resume.
func (k Keys) Leases(host string) string { return k.prefix + "leases/" + host + "/" }

// Lease is the key of one lease of a host; it is attached to that lease.
func (k Keys) Lease(host string, id LeaseID) string {
	return k.Leases(host) + strconv.FormatUint(uint64(id), 16)
}

// LeasesAll is the prefix of the leases that any host can resume.
func (k Keys) LeasesAll() string { return k.prefix + "leases/" }

// GuardsAll is the prefix of the guards of all instances.
func (k Keys) GuardsAll() string { return k.prefix + "guards/" }

// Guards is the prefix of the guards of a host's instances.
func (k Keys) Guards(host string) string { return k.prefix + "guards/" + host + "/" }

// Guard is the key of an instance's commit guard.
func (k Keys) Guard(host, instance string) string { return k.Guards(host) + instance }

// RevocationsAll is the prefix of the revocations for all hosts.
func (k Keys) RevocationsAll() string { return k.prefix + "revoke/" }

// Revocations is the prefix of the revocations for a host.
func (k Keys) Revocations(host string) string { return k.RevocationsAll() + host + "/" }

// Revocation is the key of the revocation of one claim.
func (k Keys) Revocation(host, claim string) string { return k.Revocations(host) + claim }

// Limits is the key of the limits that runs are admitted under.
func (k Keys) Limits() string { return k.prefix + "limits" }

// Runs is the prefix of the records of all runs.
func (k Keys) Runs() string { return k.prefix + "runs/" }

// Run is the key of the record of one run.
func (k Keys) Run(id string) string { return k.Runs() + id }

// ActiveAll is the prefix of the keys that show that executors are alive.
func (k Keys) ActiveAll() string { return k.prefix + "active/" }

// Active is the prefix of those of one host.
func (k Keys) Active(host string) string { return k.ActiveAll() + host + "/" }

// ActiveRun is the key that shows that the executor of a run is alive.
func (k Keys) ActiveRun(host, run string) string { return k.Active(host) + run }

// ActiveStep is the key that shows that the executor of a step instance is alive.
func (k Keys) ActiveStep(host string, id StepID) string { return k.Active(host) + id.String() }

// ParseActive takes a key under [Keys.ActiveAll] apart: that of a step instance has a
// step, and that of a run's executor has none.
func (k Keys) ParseActive(key string) (host string, id StepID, err error) {
	rest, ok := strings.CutPrefix(key, k.ActiveAll())
	host, rest, more := strings.Cut(rest, "/")
	if !ok || !more || host == "" || rest == "" {
		return "", StepID{}, fmt.Errorf("key %q is none of an executor", key)
	}
	if !strings.Contains(rest, "/") {
		return host, StepID{Run: rest}, nil
	}
	id, err = ParseStepID(rest)
	return host, id, err
}

// WorksAll is the prefix of the work of the step instances of all runs.
func (k Keys) WorksAll() string { return k.prefix + "work/" }

// Works is the prefix of the work of a run's step instances.
func (k Keys) Works(run string) string { return k.WorksAll() + run + "/" }

// Work is the key of the work of one step instance.
func (k Keys) Work(id StepID) string { return k.WorksAll() + id.String() }

// StepsAll is the prefix of the graphs of all runs that have steps, and of the states
// of their step instances: one watch sees both in their order.
func (k Keys) StepsAll() string { return k.prefix + "steps/" }

// Graph is the key of a run's graph.
func (k Keys) Graph(run string) string { return k.StepsAll() + run }

// Steps is the prefix of the states of one run.
func (k Keys) Steps(run string) string { return k.StepsAll() + run + "/" }

// Step is the key of the state of one step instance.
func (k Keys) Step(id StepID) string { return k.StepsAll() + id.String() }

// ReadyAll is the prefix of the published step instances of all queues.
func (k Keys) ReadyAll() string { return k.prefix + "ready/" }

// Ready is the prefix of those of one queue, in their order.
func (k Keys) Ready(queue string) string { return k.ReadyAll() + queue + "/" }

// CanceledAll is the prefix of the marks of runs of which nothing starts any more.
func (k Keys) CanceledAll() string { return k.prefix + "canceled/" }

// Canceled is the mark of one run.
func (k Keys) Canceled(run string) string { return k.CanceledAll() + run }

// CanceledSteps is the prefix of the marks of a run's step instances.
func (k Keys) CanceledSteps(run string) string { return k.Canceled(run) + "/" }

// CanceledStep is the mark of one step instance that is to be stopped.
func (k Keys) CanceledStep(id StepID) string { return k.CanceledAll() + id.String() }

// LogsAll is the prefix of the output of the step instances of all runs.
func (k Keys) LogsAll() string { return k.prefix + "logs/" }

// Logs is the prefix of the output of a run's step instances.
func (k Keys) Logs(run string) string { return k.LogsAll() + run + "/" }

// Log is the key of the output of one step instance.
func (k Keys) Log(id StepID) string { return k.LogsAll() + id.String() }

// Followers is the prefix of the keys of step instances whose output is followed.
func (k Keys) Followers() string { return k.prefix + "followers/" }

// Follower is the key of one such step instance, on a short lease that the client renews.
func (k Keys) Follower(id StepID) string { return k.Followers() + id.String() }

// EventsAll is the prefix of the events of all runs.
func (k Keys) EventsAll() string { return k.prefix + "events/" }

// Events is the prefix of the events of one run.
func (k Keys) Events(run string) string { return k.EventsAll() + run + "/" }

// Event is the key of one event; ids of events never come twice.
func (k Keys) Event(run, id string) string { return k.Events(run) + id }

// UsageAll is the prefix of the keys that count the runs of all identities.
func (k Keys) UsageAll() string { return k.prefix + "usage/" }

// UsageOf is the prefix of those of one identity, which is escaped as in URLs.
func (k Keys) UsageOf(identity string) string { return k.UsageAll() + url.PathEscape(identity) + "/" }

// UnfinishedRuns is the prefix of the runs of an identity that have not ended.
func (k Keys) UnfinishedRuns(identity string) string { return k.UsageOf(identity) + "unfinished/" }

// UnfinishedRun is the key of one such run.
func (k Keys) UnfinishedRun(identity, run string) string { return k.UnfinishedRuns(identity) + run }

// StoredRuns is the prefix of the stored runs of an identity of one size class, in KiB.
func (k Keys) StoredRuns(identity string, kib int64) string {
	return k.UsageOf(identity) + "stored/" + strconv.FormatInt(kib, 10) + "/"
}

// StoredRun is the key of one such run.
func (k Keys) StoredRun(identity string, kib int64, run string) string {
	return k.StoredRuns(identity, kib) + run
}

// ParseUsage takes a key under [Keys.UsageAll] apart. kib is 0 for a run that has not ended.
func (k Keys) ParseUsage(key string) (identity string, kib int64, run string, err error) {
	parts := strings.Split(strings.TrimPrefix(key, k.UsageAll()), "/")
	if identity, err = url.PathUnescape(parts[0]); err != nil {
		return "", 0, "", err
	}
	switch {
	case len(parts) == 3 && parts[1] == "unfinished":
		return identity, 0, parts[2], nil
	case len(parts) == 4 && parts[1] == "stored":
		if kib, err = strconv.ParseInt(parts[2], 10, 64); err == nil && kib > 0 {
			return identity, kib, parts[3], nil
		}
	}
	return "", 0, "", fmt.Errorf("%q is not a key of usage", key)
}

// Tasks is the prefix of the tasks whose pools were created by runs that declare their limits.
func (k Keys) Tasks() string { return k.prefix + "tasks/" }

// Task is the key of one such task.
func (k Keys) Task(name string) string { return k.Tasks() + name }

// Coordinators is the prefix of the candidates for coordinator. The one that was
// created first leads.
func (k Keys) Coordinators() string { return k.prefix + "coordinator/" }

// Coordinator is the key of one candidate, which is attached to that lease.
func (k Keys) Coordinator(id LeaseID) string {
	return CandidateKey(k.Coordinators(), id)
}

// CandidateKey is the key under prefix of the candidate on a lease.
func CandidateKey(prefix string, id LeaseID) string {
	return prefix + strconv.FormatUint(uint64(id), 16)
}

// Sources is the prefix of what is known of all sources.
func (k Keys) Sources() string { return k.prefix + "sources/" }

// Source is the prefix of what is known of one source.
func (k Keys) Source(name string) string { return k.Sources() + name + "/" }

// SourcePoll is the key of the last poll of a source.
func (k Keys) SourcePoll(name string) string { return k.Source(name) + "poll" }

// SourceLive is the prefix of the candidates of a source, and of the key that wakes it:
// one watch sees both.
func (k Keys) SourceLive(name string) string { return k.Source(name) + "live/" }

// SourceWake is the key whose change makes a source poll at once.
func (k Keys) SourceWake(name string) string { return k.SourceLive(name) + "wake" }

// SourceCandidates is the prefix of the candidates of a source. The one that was created
// first polls.
func (k Keys) SourceCandidates(name string) string { return k.SourceLive(name) + "candidates/" }

// SourceCandidate is the key of one of them, which hangs on that very lease.
func (k Keys) SourceCandidate(name string, id LeaseID) string {
	return CandidateKey(k.SourceCandidates(name), id)
}

// DedupRecords is the prefix of the dedup records of the items of a source.
func (k Keys) DedupRecords(source string) string { return k.Source(source) + "dedup/" }

// DedupRecord is the dedup record of one item.
func (k Keys) DedupRecord(source, id string) string { return k.DedupRecords(source) + id }

// Workers is the prefix of the modes that operators want workers to have.
func (k Keys) Workers() string { return k.prefix + "workers/" }

// WorkersOf is the prefix of those of a host.
func (k Keys) WorkersOf(host string) string { return k.Workers() + host + "/" }

// Worker is the key of the mode of one worker; there is none while it works.
func (k Keys) Worker(host, instance string) string { return k.WorkersOf(host) + instance }

// Actions is the prefix of the audit records of operators' actions, in order of time.
func (k Keys) Actions() string { return k.prefix + "actions/" }

// Action is the key of one of them; ids grow with time.
func (k Keys) Action(id string) string { return k.Actions() + id }

// RangeEnd returns the end of the range that holds every key under prefix.
func RangeEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0} // every key there is
}
