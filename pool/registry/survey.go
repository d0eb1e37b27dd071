package registry

import (
	"context"
	"errors"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

const (
	// maxNamed bounds what an error names of each kind. A survey stops when it knows of one more.
	maxNamed = 10
	// maxShown bounds each name, in bytes: the keys of slots, and HOST/INSTANCE, are shorter.
	maxShown = 300
)

// survey is what etcd has at one revision: what keeps it from being upgraded, and what the upgrade has to do.
type survey struct {
	keys     store.Keys
	revision int64
	// upgraded is set if the version is there. Then nothing else was read.
	upgraded bool
	// processes are alive, and claims are held.
	processes []string
	claims    []string
	// parts are slot keys that say nothing but that they are held, until a claim is known.
	parts []string
	// unreadable are specs that can't be read.
	unreadable []error
	// kept is how many specs are of the present layout, and specs are the others.
	kept  int
	specs []oldSpec
	// tasks are those whose pools were created by runs, by the names of the pools.
	tasks map[string]oldTask
	// spans are keys that no longer mean anything. The next one may extend the last span if that is open.
	spans []span
	open  bool
}

// oldSpec is a spec that is to be put again.
type oldSpec struct {
	pool     string
	revision int64
	spec     pool.Spec
	retain   time.Duration
}

// oldTask is the key of a task whose pool was created by a run, with the revision of the spec.
type oldTask struct {
	key  string
	spec int64
}

// span is all keys of a range, none of which is kept.
type span struct {
	first, last string
	keys        int
}

// survey reads what there is to upgrade.
func (l Layout) survey(ctx context.Context) (*survey, error) {
	resp, err := l.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(l.key())})
	if err != nil {
		return nil, err
	}
	s := &survey{keys: l.Keys, revision: resp.Header.Revision, tasks: map[string]oldTask{}}
	if s.upgraded, err = l.present(resp.Kvs); s.upgraded || err != nil {
		return s, err
	}
	for _, part := range []struct {
		prefix string
		take   func(*mvccpb.KeyValue)
	}{
		{l.Keys.Hosts(), s.process}, {l.Keys.Tasks(), s.task}, {l.Keys.Pools(), s.ofPool},
		{l.Keys.GuardsAll(), s.outdated}, {l.Keys.RevocationsAll(), s.outdated},
	} {
		if s.open = false; s.full() {
			break
		}
		all := store.Pages{Prefix: part.prefix, Revision: s.revision}
		if _, err := all.Each(ctx, l.Backend, func(p store.Page) bool {
			for _, kv := range p.KVs {
				if s.full() {
					return false
				}
				part.take(kv)
			}
			return true
		}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// full reports whether more is known of what keeps the data from being upgraded than an error names.
func (s *survey) full() bool {
	return max(len(s.processes), len(s.claims), len(s.unreadable)) > maxNamed
}

func (s *survey) process(kv *mvccpb.KeyValue) {
	s.processes = append(s.processes, shown(strings.TrimPrefix(string(kv.Key), s.keys.Hosts())))
}

// shown returns a key, or a part of one, as an error may show it.
func shown(key string) string { return text.Visible(text.Cut(key, maxShown)) }

// task takes the key of a task. One that can't be read is left as it is.
func (s *survey) task(kv *mvccpb.KeyValue) {
	if spec, err := decodeTask(string(kv.Key), kv.Value, kv.ModRevision); err == nil {
		name := pool.TaskPrefix + strings.TrimPrefix(string(kv.Key), s.keys.Tasks())
		s.tasks[name] = oldTask{string(kv.Key), spec}
	}
}

// ofPool takes a key of a pool.
func (s *survey) ofPool(kv *mvccpb.KeyValue) {
	name, kind, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), s.keys.Pools()), "/")
	switch {
	case kind == "spec":
		s.open = false
		s.spec(name, kv)
	case strings.HasPrefix(kind, "slots/"):
		s.slot(kv) // nothing is deleted while there is one
	default:
		s.outdated(kv)
	}
}

func (s *survey) spec(name string, kv *mvccpb.KeyValue) {
	_, _, err := wire.DecodeSpec(string(kv.Key), kv.Value, kv.ModRevision)
	if err == nil {
		s.kept++
		return
	}
	is := oldSpec{pool: name, revision: kv.ModRevision}
	if v := (*store.VersionError)(nil); errors.As(err, &v) && v.Version == oldVersion {
		is.spec, is.retain, err = decodeOldSpec(string(kv.Key), kv.Value)
	}
	if err == nil {
		if err = pool.ValidateName(name); err != nil {
			err = &store.CorruptError{Key: string(kv.Key), Reason: err}
		}
	}
	if err != nil {
		s.unreadable = append(s.unreadable, err)
		return
	}
	s.specs = append(s.specs, is)
}

// slot takes a slot that is held. A key that can't be read holds one, too.
func (s *survey) slot(kv *mvccpb.KeyValue) {
	by, err := decodeOldHolder(kv.Value)
	switch {
	case err != nil:
		s.claims = append(s.claims, "the key "+shown(string(kv.Key))+", which can't be read")
	case by != "":
		s.claims = append(s.claims, by)
	case len(s.parts) == 0:
		s.parts = append(s.parts, "the key "+shown(string(kv.Key))+" of a claim without a holder")
	}
}

// held returns the claims that are held. If none is known by name, the first key is.
func (s *survey) held() []string {
	if len(s.claims) > 0 {
		return s.claims
	}
	return s.parts
}

// outdated takes a key that is not kept.
func (s *survey) outdated(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if n := len(s.spans) - 1; s.open && s.spans[n].keys < maxDeleted {
		s.spans[n].last = key
		s.spans[n].keys++
		return
	}
	s.spans, s.open = append(s.spans, span{key, key, 1}), true
}
