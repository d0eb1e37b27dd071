package enginetest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/store/storetest"
)

// behavior is one promise of an engine. Its name is a sentence.
type behavior struct {
	name string
	run  func(w world)
	// where it runs.
	where where
}

// where says on which etcd a behavior runs.
type where int

const (
	// everywhere is on the stand-in and on a real etcd.
	everywhere where = iota
	// standIn is on the stand-in alone: the behavior needs faults, or time to pass.
	standIn
	// alone is on the stand-in, while no other behavior runs: the behavior is about memory.
	alone
)

// topics are the behaviors by what they are about.
func topics() map[string][]behavior {
	return map[string][]behavior{
		"bridges":     bridges,
		"ending":      ending,
		"etcd":        troubles,
		"events":      happenings,
		"grants":      granting,
		"identity":    identities,
		"lists":       listing,
		"queue":       queueing,
		"restore":     restoring,
		"revocations": revoking,
		"slots":       losing,
		"specs":       specifying,
		"steps":       stepping,
		"tasks":       tasking,
	}
}

// Run checks that the engine has every behavior.
func Run(t *testing.T) {
	all := topics()
	names(t, all)
	real := shared(t)
	for topic, some := range all {
		t.Run(topic, func(t *testing.T) {
			for _, b := range some {
				t.Run(b.name, func(t *testing.T) {
					if b.where != alone {
						t.Parallel()
					}
					t.Run("stand-in", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { inBubble(t, b) }) })
					if b.where == everywhere {
						t.Run("etcd", func(t *testing.T) { onEtcd(t, b, real) })
					}
				})
			}
		})
	}
}

// names checks that each behavior has a name of its own.
func names(t *testing.T, all map[string][]behavior) {
	t.Helper()
	named := map[string]bool{}
	for _, some := range all {
		for _, b := range some {
			if named[b.name] {
				t.Errorf("two behaviors are named %q", b.name)
			}
			named[b.name] = true
		}
	}
}

// shared starts the real etcd of all behaviors.
func shared(t *testing.T) *store.Client {
	if testing.Short() {
		return nil
	}
	return embedtest.Client(t, embedtest.New(t))
}

func inBubble(t *testing.T, b behavior) {
	root := storetest.NewBackend(storetest.New(storetest.Options{}))
	t.Cleanup(root.Close)
	w := newWorld(t, etcd{root: root, any: root}, store.NewKeys("/b/"))
	b.run(w)
	w.sound()
	w.audit()
}

func onEtcd(t *testing.T, b behavior, client *store.Client) {
	if client == nil {
		t.Skip("a real etcd is not used in short mode")
	}
	prefix := "/" + strings.NewReplacer(" ", "-", "/", "-", ",", "", "'", "").Replace(b.name) + "/"
	w := newWorld(t, etcd{any: client}, store.NewKeys(prefix))
	b.run(w)
	w.sound()
}

// patience is how long a test waits for what must happen. In a bubble it takes no time.
const patience = 30 * time.Second
