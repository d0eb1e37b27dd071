package storetest

import (
	"bytes"
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// index holds the keys that exist, in order. The key-values in it never change:
// a put brings a new one. A sorted slice beats a tree at the sizes of tests, up
// to some ten thousand keys, and makes ranges free.
type index []*mvccpb.KeyValue

// find returns where key is, or where it would be.
func (x index) find(key []byte) (at int, found bool) {
	at = sort.Search(len(x), func(i int) bool { return bytes.Compare(x[i].Key, key) >= 0 })
	return at, at < len(x) && bytes.Equal(x[at].Key, key)
}

// span returns the part of the index that a request names by key and range end:
// one key if end is empty, everything from key on if it is a zero byte.
func (x index) span(key, end []byte) (from, to int) {
	from, found := x.find(key)
	switch {
	case len(end) == 0:
		if found {
			return from, from + 1
		}
		return from, from
	case len(end) == 1 && end[0] == 0:
		return from, len(x)
	}
	to, _ = x.find(end)
	return from, max(from, to)
}

// under returns the part of the index that starts with prefix.
func (x index) under(prefix string) index {
	from, _ := x.find([]byte(prefix))
	to := from + sort.Search(len(x)-from, func(i int) bool {
		return !bytes.HasPrefix(x[from+i].Key, []byte(prefix))
	})
	return x[from:to]
}

// insert puts kv where find said it belongs.
func (x *index) insert(at int, kv *mvccpb.KeyValue) { *x = slices.Insert(*x, at, kv) }

// cut removes a span.
func (x *index) cut(from, to int) { *x = slices.Delete(*x, from, to) }

// set puts kv under its key.
func (x *index) set(kv *mvccpb.KeyValue) {
	at, found := x.find(kv.Key)
	if found {
		(*x)[at] = kv
		return
	}
	x.insert(at, kv)
}

// drop removes a key.
func (x *index) drop(key []byte) {
	if at, found := x.find(key); found {
		x.cut(at, at+1)
	}
}
