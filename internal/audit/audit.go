// Package audit keeps a record of what operators ask for: who asked, from where and when,
// what for, the state before and after, and the outcome. A record is written before anything
// is done, and what can't be recorded is not done.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/internal/trace"
)

// Action is the record of something that an operator asked for. It is written
// before anything is done, and again with the outcome.
type Action struct {
	// Who asked for it, as authenticated, and From which address, or which USER@HOST.
	Who  string `json:"who" doc:"The authenticated identity that asked for it, such as user:ann, or etcd:NAME for a user of etcd; anonymous or unauthenticated if there is none."`
	From string `json:"from,omitempty" doc:"The address that it was asked from, or USER@HOST."`
	// RequestID is the id of the HTTP request; empty for an action without one.
	RequestID string `json:"request_id,omitempty" doc:"The id of the HTTP request that asked for it, as in its header X-Request-Id."`
	// At is when it was asked for, and EndedAt when its outcome was known.
	At      time.Time `json:"at"`
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Action is the verb, such as [SetPool]; Object is what it is about: a pool, a claim, a
	// run, a step instance, a worker or a host. Detail has its arguments.
	Action string `json:"action" doc:"The verb, such as set-pool or cancel-run."`
	Object string `json:"object" doc:"The name of the pool, claim, run, step instance, worker or host."`
	Detail string `json:"detail,omitempty" doc:"What was asked for, and why."`
	// Before and After are the state of the object, as far as it is known.
	Before string `json:"before,omitempty" doc:"The state before, as far as it is known."`
	After  string `json:"after,omitempty" doc:"The state after."`
	// Outcome and Result say how it ended.
	Outcome Outcome `json:"outcome" enum:"asked,done,failed" doc:"asked: it is being done, or the process that did it ended before it was recorded. failed: it was refused, or it is not known whether it was done; the result says which."`
	Result  string  `json:"result,omitempty"`
}

// The verbs.
const (
	SetPool      = "set-pool"
	PausePool    = "pause-pool"
	ResumePool   = "resume-pool"
	DeletePool   = "delete-pool"
	RevokeClaim  = "revoke-claim"
	SetLimits    = "set-limits"
	CancelRun    = "cancel-run"
	RetryRun     = "retry-run"
	CancelStep   = "cancel-step"
	DrainWorker  = "drain-worker"
	StopWorker   = "stop-worker"
	ResumeWorker = "resume-worker"
	DeleteSource = "delete-source"
	FreeHost     = "free-host"
)

// Outcome is how an action ended.
type Outcome string

// The outcomes.
const (
	Asked  Outcome = "asked"
	Done   Outcome = "done"
	Failed Outcome = "failed"
)

var outcomes = []Outcome{Asked, Done, Failed}

// maxActionText bounds each text of an action, in bytes.
const maxActionText = 1024

// actionValue is an action as it is kept in etcd.
type actionValue struct {
	store.V
	Action
}

// Encode writes an action. Texts that are too long are cut.
func (a Action) Encode() []byte {
	for _, s := range []*string{&a.Who, &a.From, &a.RequestID, &a.Action, &a.Object, &a.Detail, &a.Before, &a.After, &a.Result} {
		*s = text.CutWithin(strings.ToValidUTF8(*s, "\uFFFD"), maxActionText)
	}
	return store.Encode(actionValue{store.Now, a})
}

// Entry is an action with its id. Ids grow with time.
type Entry struct {
	ID string `json:"id"`
	Action
}

// Decode reads a key under [store.Keys.Actions] and its value. Its error is a
// [*store.CorruptError].
func Decode(keys store.Keys, kv *mvccpb.KeyValue) (Entry, error) {
	key := string(kv.Key)
	id, ok := strings.CutPrefix(key, keys.Actions())
	if !ok || !isActionID(id) {
		return Entry{}, &store.CorruptError{Key: key, Reason: errors.New("it is not the key of an action")}
	}
	var v actionValue
	if err := store.Decode(key, kv.Value, &v); err != nil {
		return Entry{}, err
	}
	if err := v.Action.check(); err != nil {
		return Entry{}, &store.CorruptError{Key: key, Reason: err}
	}
	return Entry{Action: v.Action, ID: id}, nil
}

func isActionID(id string) bool {
	parsed, err := ulid.ParseStrict(id)
	return err == nil && parsed.String() == id
}

func (a Action) check() error {
	switch {
	case a.Who == "":
		return errors.New("who: it is missing")
	case a.At.IsZero():
		return errors.New("at: it is missing")
	case a.Action == "" || a.Object == "":
		return errors.New("action, object: they are missing")
	case !slices.Contains(outcomes, a.Outcome):
		return fmt.Errorf("outcome: %q is not one of %v", problem.Clip(string(a.Outcome)), outcomes)
	case (a.Outcome == Asked) != a.EndedAt.IsZero():
		return errors.New("ended_at: it does not fit the outcome")
	}
	for _, s := range []string{a.Who, a.From, a.RequestID, a.Action, a.Object, a.Detail, a.Before, a.After, a.Result} {
		if len(s) > maxActionText {
			return fmt.Errorf("a text has %d bytes: use at most %d", len(s), maxActionText)
		}
	}
	return nil
}

// actionTimeout bounds an action, its records included.
const actionTimeout = 20 * time.Second

// Unknown reports whether the outcome of an action will not be known any more.
func (a Entry) Unknown(now time.Time) bool {
	return a.Outcome == Asked && now.Sub(a.At) > 2*actionTimeout
}

// DefaultRetention is how long actions are kept unless the settings say otherwise.
const DefaultRetention = 24 * time.Hour

// Log keeps actions in etcd.
type Log struct {
	Backend store.Backend
	Keys    store.Keys
	// Retention is how long an action is kept; 0 is [DefaultRetention].
	Retention time.Duration
	// Logger logs each action too; nil logs nothing.
	Logger hclog.Logger
	// Bounds are nil for none, as for a process that acts for one user.
	Bounds *Bounds
}

// List returns up to limit actions, the newest first, that are older than the one with the
// id before; the newest of all if it is empty. Next is empty, or the id to continue with.
// Each error of bad is about an action that can't be read, and names its key.
func (l Log) List(ctx context.Context, before string, limit int) (found []Entry, next string, bad []error, err error) {
	if before != "" && !isActionID(before) {
		return nil, "", nil, problem.Field("cursor", "%q is not the id of an action", problem.Clip(before))
	}
	kvs, err := l.newest(ctx, before, limit+1)
	if err != nil {
		return nil, "", nil, store.Problem("the actions could not be read", err)
	}
	for i, kv := range kvs {
		if i == limit {
			return found, string(kvs[i-1].Key[len(l.Keys.Actions()):]), bad, nil
		}
		a, err := Decode(l.Keys, kv)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		found = append(found, a)
	}
	return found, "", bad, nil
}

// newest returns up to n actions that are older than the one with the id before, the newest
// first. To sort them, etcd would read all: so it is searched from what time on there are
// enough, by counts that double the time, and the later ones are read in order.
func (l Log) newest(ctx context.Context, before string, n int) ([]*mvccpb.KeyValue, error) {
	until, end := now(), store.RangeEnd(l.Keys.Actions())
	if id, err := ulid.ParseStrict(before); err == nil {
		until, end = id.Timestamp(), []byte(l.Keys.Action(before))
	}
	read := store.Pages{Prefix: l.Keys.Actions(), End: end, Most: actionsPage}
	all, err := l.count(ctx, &read)
	for back := 2 * time.Minute; err == nil && all > int64(n); back *= 2 {
		some := read
		some.From = l.Keys.Action(firstAt(until.Add(-back)))
		var enough int64
		if enough, err = l.count(ctx, &some); enough >= int64(n) || enough == all {
			read = some
			break
		}
	}
	if err != nil {
		return nil, err
	}
	var kvs []*mvccpb.KeyValue
	_, err = read.Each(ctx, l.Backend, func(page store.Page) bool {
		kvs = append(kvs, page.KVs...)
		kvs = slices.Clone(kvs[max(0, len(kvs)-n):])
		return true
	})
	slices.Reverse(kvs)
	return kvs, err
}

// actionsPage is how many actions one request reads at most.
const actionsPage = 1000

// count returns how many keys a range has, and pins its revision.
func (l Log) count(ctx context.Context, p *store.Pages) (int64, error) {
	n, revision, err := p.Count(ctx, l.Backend)
	p.Revision = revision
	return n, err
}

// firstAt returns the first id that an action of a time can have.
func firstAt(at time.Time) string {
	var id ulid.ULID
	_ = id.SetTime(uint64(max(0, at.UnixMilli()))) // it fails for the year 10889
	return id.String()
}

// keep writes an action on a lease that ends after the retention. The lease is granted
// with the first write of the action.
func (l Log) keep(ctx context.Context, key string, a Action, on *store.LeaseID) error {
	_, err := store.Change(ctx, "the action was not recorded", func(ctx context.Context) (rev int64, err error) {
		if *on == 0 {
			if *on, _, err = l.Backend.Grant(ctx, cmp.Or(l.Retention, DefaultRetention)); err != nil {
				return 0, err
			}
		}
		return store.Commit(ctx, l.Backend, nil, store.Put(key, a.Encode(), *on))
	})
	return err
}

// Caller is who asks for an action.
type Caller struct {
	// Identity is who it is, as it was authenticated, and what it may do.
	Identity access.Identity
	// From is the address, or USER@HOST.
	From string
	// RequestID is the id of the HTTP request; empty without one.
	RequestID string
	etcd      Users // says who it is, unless it is nil
}

// Users says as which user of etcd requests are made: see [store.Client.User].
type Users interface {
	User(ctx context.Context) (string, error)
}

// OnEtcd returns the caller who acts directly on etcd, from a process on a host. Etcd
// decides what it may do. The user of the operating system is part of From only: etcd does not
// know it.
func OnEtcd(users Users, host string) Caller {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return Caller{Identity: access.Identity{Kind: access.Unauthenticated, Grants: access.AllGrants}, From: name + "@" + host, etcd: users}
}

// Identify returns the caller with its identity, for one that acts on etcd too: that is the
// user of etcd, or [access.Unauthenticated].
func (c Caller) Identify(ctx context.Context) (Caller, error) {
	if c.etcd == nil {
		return c, nil
	}
	name, err := c.etcd.User(ctx)
	if err != nil {
		return c, store.Problem("the user of etcd could not be read", err)
	}
	if c.etcd = nil; name != "" {
		c.Identity.Kind, c.Identity.Name = access.EtcdUser, name
	}
	return c, nil
}

// String names the caller for people.
func (c Caller) String() string {
	if c.Identity.Kind == access.Unauthenticated {
		return c.From + " (" + c.Identity.String() + ")"
	}
	return c.Identity.String()
}

// Effect is what an action did.
type Effect struct {
	// Before and After are the state of the object, and Result a sentence about it.
	Before, After, Result string
}

// Do does something for an operator and records it: first that it was asked for, and
// then the outcome. What can't be recorded is not done, unless etcd is full: it still
// accepts the deletions that make space. If the outcome can't be recorded, that is in the
// log. Once begun, an action does not end with its caller's context: it has 20 s.
func (l Log) Do(ctx context.Context, by Caller, verb, object, detail string, do func(context.Context) (Effect, error)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actionTimeout)
	defer cancel()
	by, err := by.Identify(ctx)
	if err != nil {
		return err
	}
	if l.Bounds != nil {
		if err := l.Bounds.take(by.Identity, time.Now()); err != nil {
			return err
		}
	}
	key, on := l.Keys.Action(ulid.Make().String()), store.LeaseID(0)
	a := Action{
		Who: by.Identity.String(), From: by.From, RequestID: by.RequestID, At: now(), Action: verb, Object: object, Detail: detail, Outcome: Asked,
	}
	kept := l.keep(ctx, key, a, &on)
	if kept != nil && problem.CodeOf(kept) != problem.EtcdFull {
		return kept
	}
	effect, err := do(ctx)
	a.Before, a.After, a.Outcome, a.Result, a.EndedAt = effect.Before, effect.After, Done, effect.Result, now()
	if err != nil {
		a.After, a.Outcome, a.Result = "", Failed, err.Error()
	}
	logger := l.Logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	log := logger.With("action", verb, "object", problem.Clip(object), "who", a.Who, "from", by.From)
	if by.RequestID != "" {
		log = log.With("request_id", by.RequestID)
	}
	if id := trace.IDOf(ctx); id != "" {
		log = log.With("trace_id", id)
	}
	if kept == nil || err == nil { // after an action that freed space, its record may fit
		kept = l.keep(ctx, key, a, &on)
	}
	if kept != nil {
		log.Warn("the outcome of an action could not be recorded", "error", kept)
	}
	if err != nil {
		if l.Bounds == nil || l.Bounds.Failed.Allow(logger, hclog.Warn, "failed actions") {
			log.Warn("an action failed", "detail", detail, "error", err)
		}
	} else {
		log.Info("an action was carried out", "detail", detail, "before", a.Before, "after", a.After)
	}
	return err
}

// now is the time as records have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
