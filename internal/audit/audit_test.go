package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

var actionKeys = store.NewKeys("/b/")

const actionID = "01KJ5Z7D8XQ4M2N6P0R3S5T7V9"

// asked is an action that was asked for.
func asked(change ...func(*Action)) Action {
	a := Action{
		Who: "ann", From: "127.0.0.1:4711", At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Action: "limit", Object: "db", Detail: "limit 5", Before: "limit 3", Outcome: Asked,
	}
	for _, f := range change {
		f(&a)
	}
	return a
}

func decodeAction(key string, value []byte) (Entry, error) {
	return Decode(actionKeys, &mvccpb.KeyValue{Key: []byte(key), Value: value})
}

func TestActionsReadBack(t *testing.T) {
	for name, a := range map[string]Action{
		"asked": asked(),
		"done": asked(func(a *Action) {
			a.Outcome, a.Result, a.EndedAt = Done, "it is so", a.At.Add(time.Second)
		}),
		"failed": asked(func(a *Action) { a.Outcome, a.Result, a.EndedAt = Failed, "no", a.At }),
		"bare":   asked(func(a *Action) { a.From, a.Detail, a.Before = "", "", "" }),
	} {
		got, err := decodeAction(actionKeys.Action(actionID), a.Encode())
		if d := cmp.Diff(Entry{Action: a, ID: actionID}, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
}

func TestTextsOfActionsAreCutToWhatIsAllowed(t *testing.T) {
	long := strings.Repeat("ä", maxActionText)
	a := asked(func(a *Action) { a.Who, a.From, a.Object, a.Detail = long, long, long+"\xff", "\xffbroken" })
	got, err := decodeAction(actionKeys.Action(actionID), a.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{got.Who, got.From, got.Object} {
		if len(text) > maxActionText || len(text) < maxActionText-8 || !strings.HasSuffix(text, "ä…") {
			t.Errorf("%d bytes: …%q", len(text), text[len(text)-8:])
		}
	}
	if got.Detail != "\uFFFDbroken" {
		t.Errorf("%q", got.Detail)
	}
}

func TestActionsThatAreNoneAreRefused(t *testing.T) {
	good := actionKeys.Action(actionID)
	for _, c := range []struct {
		why, key string
		value    []byte
	}{
		{"not the key of an action", actionKeys.Actions(), asked().Encode()},
		{"not the key of an action", actionKeys.Action("1"), asked().Encode()},
		{"not the key of an action", actionKeys.Action(strings.ToLower(actionID)), asked().Encode()},
		{"not the key of an action", good + "/x", asked().Encode()},
		{"not the key of an action", "/b/runs/r", asked().Encode()},
		{"version 2", good, []byte(`{"v":2,"more":1}`)},
		{"unknown field", good, []byte(`{"v":1,"more":1}`)},
		{"who", good, asked(func(a *Action) { a.Who = "" }).Encode()},
		{"at", good, asked(func(a *Action) { a.At = time.Time{} }).Encode()},
		{"action, object", good, asked(func(a *Action) { a.Action = "" }).Encode()},
		{"action, object", good, asked(func(a *Action) { a.Object = "" }).Encode()},
		{`outcome: "maybe"`, good, asked(func(a *Action) { a.Outcome = "maybe" }).Encode()},
		{"ended_at", good, asked(func(a *Action) { a.EndedAt = a.At }).Encode()},
		{"ended_at", good, asked(func(a *Action) { a.Outcome = Done }).Encode()},
		{"use at most 1024", good, store.Encode(actionValue{store.Now, asked(func(a *Action) { a.Detail = strings.Repeat("x", 1025) })})},
	} {
		_, err := decodeAction(c.key, c.value)
		var corrupt *store.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Key != c.key || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s %.60s: %v, want %q", c.key, c.value, err, c.why)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(actionKeys.Action(actionID), asked().Encode())
	f.Add(actionKeys.Action(actionID), []byte(`{"v":1,"who":"a","at":"2026-01-01T00:00:00Z","action":"x","object":"y","outcome":"done","ended_at":"2026-01-01T00:00:00Z"}`))
	f.Add(actionKeys.Action("x"), []byte(`null`))
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		a, err := decodeAction(key, data)
		if err != nil {
			var corrupt *store.CorruptError
			if !errors.As(err, &corrupt) || corrupt.Key != key {
				t.Fatalf("key %q: %v", key, err)
			}
			return
		}
		if actionKeys.Action(a.ID) != key {
			t.Fatalf("key %q was read as %q", key, a.ID)
		}
		again, err := decodeAction(key, a.Encode())
		if err != nil || !cmp.Equal(a, again) {
			t.Fatalf("%+v became %+v, %v", a, again, err)
		}
	})
}

func TestAnActionIsRecordedBeforeAndAfterItIsDone(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(*storetest.Etcd, *storetest.Backend)
		fails   error
		done    bool
		want    []Outcome // that are recorded
	}{
		"done":   {done: true, want: []Outcome{Done}},
		"failed": {fails: errors.New("no"), done: true, want: []Outcome{Failed}},
		"etcd is full: what frees space is done": {
			arrange: func(e *storetest.Etcd, _ *storetest.Backend) { e.SetSpace(storetest.SpaceFull) }, done: true,
		},
		"etcd refuses the user: nothing is done": {
			arrange: func(_ *storetest.Etcd, b *storetest.Backend) {
				b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: true, Err: store.ErrDenied} })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			etcd := storetest.New(storetest.Options{})
			b := storetest.NewBackend(etcd)
			defer b.Close()
			if c.arrange != nil {
				c.arrange(etcd, b)
			}
			l, done := Log{Backend: b, Keys: actionKeys}, false
			err := l.Do(t.Context(), Caller{Identity: access.Identity{Kind: access.User, Name: "ann"}, From: "desk"}, SetPool, "db", "limit 5", func(context.Context) (Effect, error) {
				done = true
				if c.arrange == nil {
					if d := cmp.Diff([]Outcome{Asked}, outcomesIn(t, b)); d != "" {
						t.Errorf("meanwhile there are (-want +got):\n%s", d)
					}
				}
				return Effect{Before: "limit 3", After: "limit 5"}, c.fails
			})
			if done != c.done || (err == nil) != (c.done && c.fails == nil) {
				t.Errorf("done: %v, %v", done, err)
			}
			b.Inject(nil)
			if d := cmp.Diff(c.want, outcomesIn(t, b)); d != "" {
				t.Errorf("recorded are (-want +got):\n%s", d)
			}
		})
	}
}

func TestFailedActionsAreLoggedAtABoundedRate(t *testing.T) {
	const many = 50
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer b.Close()
	var out strings.Builder
	log := hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Info})
	l := Log{Backend: b, Keys: actionKeys, Logger: log, Bounds: new(Bounds)}
	ann := Caller{Identity: access.Identity{Kind: access.User, Name: "ann"}, From: "desk"}
	for n := range many {
		for _, fails := range []error{errors.New("no"), nil} {
			err := l.Do(t.Context(), ann, SetPool, fmt.Sprintf("db%d", n), "limit 5", func(context.Context) (Effect, error) { return Effect{}, fails })
			if !errors.Is(err, fails) {
				t.Fatal(err)
			}
		}
	}
	l.Bounds.Failed.Flush()
	for text, want := range map[string]int{"an action failed": lograte.Most, "an action was carried out": many, fmt.Sprintf("suppressed=%d", many-lograte.Most): 1} {
		if n := strings.Count(out.String(), text); n != want {
			t.Errorf("%q is in the log %d times, want %d", text, n, want)
		}
	}
}

// outcomesIn are those of all actions in etcd.
func outcomesIn(t *testing.T, b store.Backend) (all []Outcome) {
	t.Helper()
	found, err := store.ReadAll(t.Context(), b, actionKeys.Actions())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range found.KVs {
		a, err := Decode(actionKeys, kv)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a.Outcome)
	}
	return all
}

// lagging is a source whose view does not have the newest pool yet.
type lagging struct {
	Source
	deleted string
}

func (s *lagging) Pool(context.Context, string) (pool.Detail, error) {
	return pool.Detail{}, problem.New(problem.PoolNotFound, "no such pool")
}

func (s *lagging) DeletePool(_ context.Context, name string, _ store.Condition) error {
	s.deleted = name
	return nil
}

func TestAPoolThatTheViewDoesNotHaveYetIsDeleted(t *testing.T) {
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer b.Close()
	s := &lagging{}
	p := PoolOperator{Log: Log{Backend: b, Keys: actionKeys}, By: Caller{Identity: accesstest.Admin}, Source: s}
	if err := p.DeletePool(t.Context(), "db"); err != nil || s.deleted != "db" {
		t.Errorf("%q is deleted, %v", s.deleted, err)
	}
}

// users returns the user under which etcd accepts requests.
type users string

func (u users) User(context.Context) (string, error) {
	if u == "broken" {
		return "", store.ErrUnavailable
	}
	return string(u), nil
}

func TestWhoActsOnEtcdIsTheUserOfEtcd(t *testing.T) {
	b := storetest.NewBackend(storetest.New(storetest.Options{}))
	defer b.Close()
	log := Log{Backend: b, Keys: actionKeys}
	done := 0
	act := func(u users) error {
		return log.Do(t.Context(), OnEtcd(u, "one"), PausePool, "db", "", func(context.Context) (Effect, error) {
			done++
			return Effect{}, nil
		})
	}
	for _, u := range []users{"ann", ""} {
		if err := act(u); err != nil {
			t.Fatal(err)
		}
	}
	if err := act("broken"); problem.CodeOf(err) != problem.EtcdUnavailable || done != 2 {
		t.Errorf("it was done %d times, with %v", done, err)
	}
	found, err := store.ReadAll(t.Context(), b, actionKeys.Actions())
	if err != nil || len(found.KVs) != 2 {
		t.Fatal(found, err)
	}
	for i, who := range []string{"etcd:ann", "unauthenticated"} {
		a, err := Decode(actionKeys, found.KVs[i])
		if err != nil {
			t.Fatal(err)
		}
		if a.Who != who || !strings.HasSuffix(a.From, "@one") || strings.HasPrefix(a.From, "@") {
			t.Errorf("it is recorded as of %s from %s, want %s", a.Who, a.From, who)
		}
	}
}

func TestAnOperatorOfSomePoolsRevokesClaimsOfTheseOnly(t *testing.T) {
	claim := func(pools ...string) pool.HolderStatus {
		slots := map[string]int{}
		for _, p := range pools {
			slots[p] = 1
		}
		return pool.HolderStatus{Pools: slots}
	}
	o := PoolOperator{By: Caller{Identity: access.Identity{Kind: access.User, Name: "ann", Grants: access.Grants{{Role: access.Operate, Pattern: "d*"}}}}}
	for _, test := range []struct {
		all     []pool.HolderStatus
		unknown error
		may     bool
	}{
		{all: []pool.HolderStatus{claim("db")}, may: true},
		{all: []pool.HolderStatus{claim("db", "gpu")}},
		{all: []pool.HolderStatus{claim("db"), claim("gpu")}}, // of two instances
		{unknown: problem.New(problem.ClaimNotFound, "no claim")},
	} {
		if err := o.MayRevoke(pool.Why{All: test.all}, test.unknown); (err == nil) != test.may {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
