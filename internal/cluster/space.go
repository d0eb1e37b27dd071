package cluster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// spacePage is how many keys one read of [Client.Space] returns.
	spacePage = 500
	// spaceDelete is how many keys one write of [Client.Free] deletes.
	spaceDelete = 5000
	// otherPrograms is the kind of keys outside the prefix.
	otherPrograms = "other programs"
)

// Keys tells keys of runs from others.
type Keys interface {
	// Prefix is that of all keys of berth; what follows up to a slash is the kind of a key.
	Prefix() string
	// Runs, EventsAll, LogsAll and UsageAll are prefixes of kinds, and Events and Logs those of
	// one run.
	Runs() string
	EventsAll() string
	LogsAll() string
	UsageAll() string
	Events(run string) string
	Logs(run string) string
	// Run is the key of a run.
	Run(run string) string
	// ParseUsage takes a key under UsageAll apart. kib is 0 for a run that has not ended.
	ParseUsage(key string) (identity string, kib int64, run string, err error)
}

// Space is what fills etcd.
type Space struct {
	// Revision is that of the reads.
	Revision int64         `json:"revision"`
	Members  []MemberSpace `json:"members"`
	// Kinds are the keys that exist, by kind, the largest first.
	Kinds []KindSpace `json:"kinds"`
	// Identities are those that have submitted runs, the largest first.
	Identities []IdentitySpace `json:"identities"`
	// Absent are the keys of runs that do not exist: see [Client.Free].
	Absent AbsentSpace `json:"absent_runs"`
}

// MemberSpace is the database of a member, in bytes.
type MemberSpace struct {
	Name string `json:"name"`
	// DB is the size of its file, of which Free is not in use, Keys are the keys that exist, and
	// History is the rest: earlier revisions that are not compacted, and overhead.
	DB      int64    `json:"db_bytes"`
	Keys    int64    `json:"keys_bytes"`
	History int64    `json:"history_bytes"`
	Free    int64    `json:"free_bytes"`
	Quota   int64    `json:"quota_bytes,omitempty"`
	Alarms  []string `json:"alarms,omitempty"`
}

// KindSpace is the keys of one kind, such as events.
type KindSpace struct {
	Kind string `json:"kind"`
	Keys int64  `json:"keys"`
	// Bytes is the size of the keys and their values.
	Bytes int64 `json:"bytes"`
}

// IdentitySpace is the runs of an identity that were submitted with a count.
type IdentitySpace struct {
	Identity   string `json:"identity"`
	Unfinished int64  `json:"unfinished_runs"`
	Stored     int64  `json:"stored_runs"`
	// Bytes is what the stored runs count as.
	Bytes int64 `json:"stored_bytes"`
}

// AbsentSpace is the events and output of runs that do not exist, and what counts such runs.
type AbsentSpace struct {
	Runs  int   `json:"runs"`
	Keys  int64 `json:"keys"`
	Bytes int64 `json:"bytes"`

	// runs are those with events or output, and counts the keys that count runs, by run.
	runs   map[string]bool
	counts map[string][]string
}

// Space reads all keys at one revision, and the sizes of the databases. It writes nothing, so it
// works while etcd is full.
func (c *Client) Space(ctx context.Context, keys Keys) (*Space, error) {
	status, err := c.working(ctx)
	if err != nil {
		return nil, err
	}
	s := &scan{
		keys: keys, kinds: map[string]*KindSpace{}, identities: map[string]*IdentitySpace{},
		runs: map[string]bool{}, ofRuns: map[string]*KindSpace{}, counts: map[string][]string{},
	}
	if err := c.scan(ctx, s); err != nil {
		return nil, c.problem(err, "the keys could not be read")
	}
	return s.space(status), nil
}

// scan reads all keys, in pages.
func (c *Client) scan(ctx context.Context, s *scan) error {
	from := "\x00"
	for {
		page, cancel := context.WithTimeout(ctx, requestTimeout)
		resp, err := c.etcd.Get(page, from, clientv3.WithFromKey(), clientv3.WithLimit(spacePage), clientv3.WithRev(s.revision))
		cancel()
		if err != nil {
			return err
		}
		if s.revision == 0 {
			s.revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			s.add(string(kv.Key), int64(len(kv.Key)+len(kv.Value)))
		}
		if !resp.More {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// scan is what was read so far.
type scan struct {
	keys       Keys
	revision   int64
	bytes      int64
	kinds      map[string]*KindSpace
	identities map[string]*IdentitySpace
	// runs are those that exist; ofRuns are the events and output of runs, by run, and counts the
	// keys that count runs.
	runs   map[string]bool
	ofRuns map[string]*KindSpace
	counts map[string][]string
}

// add counts a key.
func (s *scan) add(key string, bytes int64) {
	s.bytes += bytes
	kind := otherPrograms
	rest, ours := strings.CutPrefix(key, s.keys.Prefix())
	if ours {
		kind, _, _ = strings.Cut(rest, "/")
	}
	count(s.kinds, kind, bytes)
	switch {
	case !ours:
	case strings.HasPrefix(key, s.keys.Runs()):
		s.runs[strings.TrimPrefix(key, s.keys.Runs())] = true
	case strings.HasPrefix(key, s.keys.EventsAll()), strings.HasPrefix(key, s.keys.LogsAll()):
		_, rest, _ = strings.Cut(rest, "/")
		id, _, _ := strings.Cut(rest, "/")
		count(s.ofRuns, id, bytes)
	case strings.HasPrefix(key, s.keys.UsageAll()):
		s.usage(key)
	}
}

func count(all map[string]*KindSpace, kind string, bytes int64) {
	k := all[kind]
	if k == nil {
		k = &KindSpace{Kind: kind}
		all[kind] = k
	}
	k.Keys++
	k.Bytes += bytes
}

// usage adds a key that counts a run.
func (s *scan) usage(key string) {
	by, kib, id, err := s.keys.ParseUsage(key)
	if err != nil {
		return
	}
	s.counts[id] = append(s.counts[id], key)
	of := s.identities[by]
	if of == nil {
		of = &IdentitySpace{Identity: by}
		s.identities[by] = of
	}
	if kib == 0 {
		of.Unfinished++
		return
	}
	of.Stored++
	of.Bytes += kib << 10
}

// space returns what was read, with the sizes of the databases.
func (s *scan) space(status *Status) *Space {
	sp := &Space{Revision: s.revision, Members: []MemberSpace{}, Kinds: []KindSpace{}, Identities: []IdentitySpace{}}
	for _, m := range status.Members {
		if m.DBBytes > 0 {
			sp.Members = append(sp.Members, MemberSpace{
				Name: m.label(), DB: m.DBBytes, Keys: s.bytes, History: max(0, m.UsedBytes-s.bytes), Free: m.DBBytes - m.UsedBytes,
				Quota: m.QuotaBytes, Alarms: m.Alarms,
			})
		}
	}
	for _, k := range s.kinds {
		sp.Kinds = append(sp.Kinds, *k)
	}
	slices.SortFunc(sp.Kinds, func(a, b KindSpace) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Kind, b.Kind))
	})
	for _, of := range s.identities {
		sp.Identities = append(sp.Identities, *of)
	}
	slices.SortFunc(sp.Identities, func(a, b IdentitySpace) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Identity, b.Identity))
	})
	sp.Absent = s.absent()
	return sp
}

// absent returns what there is of runs that do not exist.
func (s *scan) absent() AbsentSpace {
	a := AbsentSpace{runs: map[string]bool{}, counts: map[string][]string{}}
	of := map[string]bool{}
	for id, k := range s.ofRuns {
		if !s.runs[id] {
			a.runs[id], of[id] = true, true
			a.Keys, a.Bytes = a.Keys+k.Keys, a.Bytes+k.Bytes
		}
	}
	for id, keys := range s.counts {
		if !s.runs[id] {
			a.counts[id], of[id] = keys, true
			a.Keys += int64(len(keys))
			for _, key := range keys {
				a.Bytes += int64(len(key))
			}
		}
	}
	a.Runs = len(of)
	return a
}

// Freed is what [Client.Free] has done.
type Freed struct {
	// Deleted is the number of keys that were deleted, of runs that do not exist.
	Deleted int64 `json:"deleted_keys"`
	// Compacted is the revision up to which the history was compacted.
	Compacted int64          `json:"compacted_revision"`
	Members   []Defragmented `json:"members"`
}

// Free frees what can be freed without a loss: it deletes the events and output of runs that do
// not exist, compacts the history, defragments the members, and clears the alarm. Nothing of it
// needs space. If a member is still full after that, the error is [problem.EtcdFull], and what
// was freed is returned too.
func (c *Client) Free(ctx context.Context, keys Keys, s *Space) (*Freed, error) {
	done := &Freed{Members: []Defragmented{}}
	for _, id := range slices.Sorted(maps.Keys(s.Absent.runs)) {
		for _, all := range []string{keys.Events(id), keys.Logs(id)} {
			n, err := c.deleteAbsent(ctx, keys.Run(id), all)
			done.Deleted += n
			if err != nil {
				return done, c.problem(err, "the keys of runs that do not exist could not be deleted")
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Absent.counts)) {
		var ops []clientv3.Op
		for _, key := range s.Absent.counts[id] {
			ops = append(ops, clientv3.OpDelete(key))
		}
		n, err := c.ifAbsent(ctx, keys.Run(id), ops...)
		done.Deleted += n
		if err != nil {
			return done, c.problem(err, "the keys of runs that do not exist could not be deleted")
		}
	}
	if err := c.compact(ctx, done); err != nil {
		return done, err
	}
	err := c.Defrag(ctx, func(d Defragmented) { done.Members = append(done.Members, d) })
	return done, err
}

// compact compacts all of the history.
func (c *Client) compact(ctx context.Context, done *Freed) error {
	resp, err := c.etcd.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err == nil {
		done.Compacted = resp.Header.Revision
		long, cancel := context.WithTimeout(ctx, defragTimeout)
		defer cancel()
		_, err = c.etcd.Compact(long, done.Compacted, clientv3.WithCompactPhysical())
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil // by another process, meanwhile
	}
	if err != nil {
		return c.problem(err, "etcd was not compacted")
	}
	return nil
}

// deleteAbsent deletes the keys under a prefix, some per write, as long as a run does not exist.
func (c *Client) deleteAbsent(ctx context.Context, run, prefix string) (deleted int64, err error) {
	for {
		resp, err := c.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(spaceDelete))
		if err != nil || len(resp.Kvs) == 0 {
			return deleted, err
		}
		last := string(resp.Kvs[len(resp.Kvs)-1].Key)
		n, err := c.ifAbsent(ctx, run, clientv3.OpDelete(prefix, clientv3.WithRange(last+"\x00")))
		if deleted += n; err != nil || n == 0 {
			return deleted, err
		}
	}
}

// ifAbsent deletes keys if a run does not exist, and returns how many it has deleted.
func (c *Client) ifAbsent(ctx context.Context, run string, ops ...clientv3.Op) (deleted int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(run), "=", 0)).Then(ops...).Commit()
	if err != nil || !resp.Succeeded {
		return 0, err
	}
	for _, r := range resp.Responses {
		deleted += r.GetResponseDeleteRange().GetDeleted()
	}
	return deleted, nil
}
