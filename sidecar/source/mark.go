package source

import (
	"maps"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// mark says that an item was submitted.
type mark struct {
	// At is when.
	At time.Time `json:"at"`
	// Gone is since when it is listed no more; zero while it is listed.
	Gone time.Time `json:"gone,omitzero"`
}

// markValue is how a mark stands in etcd.
type markValue struct {
	store.V
	mark
}

func (m mark) encode() []byte { return store.Encode(markValue{store.Now, m}) }

// decodeMark reads a mark. Its error is a [*store.CorruptError].
func decodeMark(key string, data []byte) (mark, error) {
	var v markValue
	err := store.Decode(key, data, &v)
	return v.mark, err
}

// marks are those of a source, by the ids of items.
type marks map[string]mark

// due is what follows from what a look lists.
type due struct {
	// submit are the items that are new, in their order.
	submit []Item
	// change are marks of items that are listed no more, or again.
	change marks
	// forget are the ids of items that have not been listed for long enough, in order.
	forget []string
}

// due holds what is listed now against the marks.
func (all marks) due(items []Item, forget time.Duration, now time.Time) due {
	d := due{change: marks{}}
	listed := make(map[string]bool, len(items))
	for _, it := range items {
		listed[it.ID] = true
		m, seen := all[it.ID]
		switch {
		case !seen:
			d.submit = append(d.submit, it)
		case !m.Gone.IsZero():
			d.change[it.ID] = mark{At: m.At}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		m := all[id]
		switch {
		case listed[id]:
		case m.Gone.IsZero():
			d.change[id] = mark{At: m.At, Gone: now}
		case now.Sub(m.Gone) >= forget:
			d.forget = append(d.forget, id)
		}
	}
	return d
}
