package store

import (
	"fmt"
	"slices"
	"strings"
)

// Role is a role of etcd with the rights that one kind of process needs. Roles add up.
type Role struct {
	// Name is the name in etcd, such as berth-host-web-1.
	Name string
	// Reads and Writes are the keys that the role may read, and read and write.
	Reads, Writes []KeyRange
}

// RootRole is the role that may do everything. It belongs to etcd itself.
const RootRole = rootRole

// The kinds of roles whose rights processes check at their start.
const (
	HostRole        = "host"
	DispatcherRole  = "dispatcher"
	CoordinatorRole = "coordinator"
	SourceRole      = "source"
)

// RoleKind is a kind of roles: a word, and what follows it after a colon.
type RoleKind struct {
	// Kind is the word, and Of what a role of the kind is for: empty if there is one role only.
	Kind, Of string
	// Every reports that "*" means all of them.
	Every bool
	// For says which processes need the role.
	For string

	rights func(k Keys, of string) (reads, writes []KeyRange)
}

// String returns how a role of the kind is written.
func (r RoleKind) String() string {
	if r.Of == "" {
		return r.Kind
	}
	return r.Kind + ":" + r.Of
}

// all is the object of a role for all hosts or pools.
const all = "*"

// below returns the keys with a prefix of one object, or of all.
func below(prefix, of string) KeyRange {
	if of == all {
		return Prefix(prefix)
	}
	return Prefix(prefix + of + "/")
}

// oneKey is the range of one key.
func oneKey(key string) KeyRange { return KeyRange{Key: key} }

// prefixes returns the ranges of prefixes.
func prefixes(all ...string) (ranges []KeyRange) {
	for _, p := range all {
		ranges = append(ranges, Prefix(p))
	}
	return ranges
}

// RoleKinds are the kinds of roles.
var RoleKinds = []RoleKind{
	{
		Kind: "admin", For: "`berth server`, and operators who run `berth cluster`: everything. It is the role `root` of etcd",
	},
	{
		Kind: HostRole, Of: "HOST", Every: true, For: "each sidecar, worker and `berth exec` of the host",
		rights: func(k Keys, host string) (reads, writes []KeyRange) {
			for _, prefix := range []string{k.Hosts(), k.LeasesAll(), k.GuardsAll(), k.ActiveAll(), k.RevocationsAll(), k.OffersAll()} {
				writes = append(writes, below(prefix, host))
			}
			return append(prefixes(k.Pools(), k.PendingAll(), k.Dispatcher()), oneKey(k.Layout())), append(writes, Prefix(k.IDs()))
		},
	},
	{
		Kind: "pool", Of: "POOL", Every: true, For: "those that claim slots of the pool. `*` may also change all pools",
		rights: func(k Keys, pool string) (reads, writes []KeyRange) {
			if pool == all {
				return nil, append(prefixes(k.Pools(), k.PendingAll()), oneKey(k.Layout()))
			}
			return nil, append(prefixes(k.Slots(pool), k.DemandsAll(pool)), oneKey(k.Pending(pool)))
		},
	},
	{
		Kind: DispatcherRole, For: "hosts that may dispatch the claims of all hosts while no coordinator runs",
		rights: func(k Keys, _ string) (reads, writes []KeyRange) {
			return []KeyRange{k.DispatcherRange()}, prefixes(k.OffersAll(), k.PendingAll(), k.Dispatcher())
		},
	},
	{
		Kind: "viewer", For: "each sidecar, and commands that only read, such as `berth pools list`, `why`, `verify` and `export`",
		rights: func(k Keys, _ string) (reads, writes []KeyRange) { return prefixes(k.Prefix()), nil },
	},
	{
		Kind: "worker", For: "each worker",
		rights: func(k Keys, _ string) (reads, writes []KeyRange) {
			return prefixes(k.Hosts(), k.Runs(), k.WorksAll(), k.Followers(), k.Workers()),
				prefixes(k.StepsAll(), k.ReadyAll(), k.CanceledAll(), k.EventsAll(), k.LogsAll())
		},
	},
	{
		Kind: "runs", For: "each sidecar that accepts runs, or has executors",
		rights: func(k Keys, _ string) (reads, writes []KeyRange) {
			return append(prefixes(k.Pools(), k.Limits()), oneKey(k.Layout())), k.ofRuns()
		},
	},
	{
		Kind: "operator", For: "each sidecar whose users are operators, and commands that change something, such as `berth pools set` and `berth submit`",
		rights: func(k Keys, _ string) (reads, writes []KeyRange) {
			writes = append(k.ofRuns(), prefixes(k.Pools(), k.PendingAll(), k.IDs(), k.Limits(), k.RevocationsAll(), k.Workers(), k.Sources(), k.Actions())...)
			return prefixes(k.Prefix()), append(writes, oneKey(k.Layout()))
		},
	},
	{
		Kind: CoordinatorRole, Of: "HOST", Every: true, For: "a coordinator on the host, also one within a sidecar",
		rights: func(k Keys, host string) (reads, writes []KeyRange) {
			return prefixes(k.Prefix()), append([]KeyRange{below(k.Hosts(), host)}, prefixes(
				k.GuardsAll(), k.Coordinators(), k.Pools(), k.PendingAll(), k.IDs(), k.OffersAll(), k.Dispatcher(), k.RevocationsAll(),
				k.Runs(), k.UsageAll(), k.Tasks(), k.StepsAll(), k.WorksAll(), k.ReadyAll(), k.CanceledAll(), k.EventsAll(), k.LogsAll())...)
		},
	},
	{
		Kind: SourceRole, Of: "NAME@HOST", For: "the process that runs the source on the host",
		rights: func(k Keys, of string) (reads, writes []KeyRange) {
			name, host, _ := strings.Cut(of, "@")
			return append(prefixes(k.Pools(), k.Limits(), k.CanceledAll()), oneKey(k.Layout())), prefixes(
				k.Source(name), k.Instances(host), k.Runs(), k.UsageAll(), k.Tasks(), k.StepsAll(), k.WorksAll(), k.EventsAll())
		},
	},
}

// ofRuns returns the keys of runs and their steps.
func (k Keys) ofRuns() []KeyRange {
	return prefixes(
		k.Runs(), k.UsageAll(), k.Tasks(), k.StepsAll(), k.WorksAll(), k.ReadyAll(), k.CanceledAll(), k.EventsAll(), k.LogsAll(), k.Followers())
}

// RightsOf returns the rights of a role of a kind. A process checks those of its own at its start. Any instance has the
// role of its host: it also needs those of the pools that it claims, and which these are shows later.
func (k Keys) RightsOf(kind, of string) []Right {
	for _, r := range RoleKinds {
		if r.Kind == kind {
			reads, writes := r.rights(k, of)
			return append(ReadRights(reads...), WriteRights(writes...)...)
		}
	}
	return nil
}

// Role returns the role that a text names, such as viewer, host:web-1 or pool:*. Its error says
// what is wrong with the text.
func (k Keys) Role(text string) (Role, error) {
	kind, of, has := strings.Cut(text, ":")
	at := slices.IndexFunc(RoleKinds, func(r RoleKind) bool { return r.Kind == kind })
	if at < 0 {
		return Role{}, fmt.Errorf("there is no role %q: the roles are %s", text, roleTexts())
	}
	r := RoleKinds[at]
	name, host, both := strings.Cut(of, "@")
	switch {
	case r.Of == "" && has, r.Of != "" && of == "", strings.Contains(of, "/"), of == all && !r.Every,
		r.Kind == "source" && (!both || name == "" || host == ""):
		return Role{}, fmt.Errorf("%q is not a role: write %s", text, r)
	case r.rights == nil:
		return Role{Name: RootRole}, nil
	}
	role := Role{Name: k.roleName(r, of)}
	role.Reads, role.Writes = r.rights(k, of)
	return role, nil
}

// roleName returns the name of a role in etcd. It begins with the prefix of the keys, so that berths
// with other prefixes have other roles.
func (k Keys) roleName(r RoleKind, of string) string {
	name := strings.ReplaceAll(strings.Trim(k.Prefix(), "/"), "/", "-") + "-" + r.Kind
	switch {
	case of == "":
		return name
	case of == all:
		return name + "s"
	case r.Kind == "source":
		of, _, _ = strings.Cut(of, "@")
	}
	return name + "-" + of
}

func roleTexts() string {
	texts := make([]string, len(RoleKinds))
	for i, r := range RoleKinds {
		texts[i] = r.String()
	}
	return strings.Join(texts, ", ")
}
