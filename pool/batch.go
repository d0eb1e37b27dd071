package pool

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// maxOps is etcd's default for compares, and for operations, of one
	// transaction (max-txn-ops); a nested one may have what its parent's larger
	// number leaves.
	maxOps = 128
	// maxChildren bounds the operations at the root of a nested batch, so that
	// its children may have as many again: 64 × 64 is the most that etcd takes.
	maxChildren = 60
	// grantCompares are left by releases for the compares of what is granted in
	// the same batch: usually those of a pool or two, and a few of their groups.
	grantCompares = 8
	// maxChildOps bounds a child that is part of a wide claim.
	maxChildOps = 60
	// wideKeys is from how many keys on a claim goes alone.
	wideKeys = 32
	// exclusiveAfter is from how many lost races on a claim has others wait. Only
	// wide claims among much traffic come to that.
	exclusiveAfter = 4
	// maxBytes bounds the values of a batch; etcd's limit is 1.5 MiB in all.
	maxBytes = 1 << 20
)

// shape of a batch.
type shape int

const (
	// flat: all compares at the root, so all happens or nothing. What it gives
	// back can be overwritten in place.
	flat shape = iota
	// nested: a child per claim and release, each failing alone.
	nested
	// wide: one claim of many keys, alone.
	wide
	// freeing: releases only, without the guard: a full etcd takes nothing else.
	// It need not be settled, since a release can be repeated.
	freeing
)

// batch is one transaction and what it is about.
type batch struct {
	shape    shape
	txn      *pb.TxnRequest
	grants   []*grant
	releases []giving
	puts     []lining
	drops    []drop
	probes   int // how many waiters of other instances are probed
	revokes  []string
	leases   []store.LeaseID
	sent     map[slotRef]sentSlot
}

// grant is an entry that gets its slots.
type grant struct {
	e      *entry
	slots  []placed
	groups []groupRef  // compared
	whole  []*poolView // compared as a whole
	op     int         // its operation in a nested batch
	// extraAt is the first operation of what it carries along, in the batch or in the
	// nested one.
	extraAt int
}

// giving is an entry that gives its slots back.
type giving struct {
	e  *entry
	op int
}

// lining is an entry whose waiter is written.
type lining struct {
	e                  *entry
	reserve, exclusive bool
	lease              store.LeaseID
}

// size is how many entries a batch is about.
func (b *batch) size() int {
	return len(b.grants) + len(b.releases) + len(b.puts) + len(b.drops) + b.probes
}

// result tells how the operation with that index of a nested batch ended.
func (b *batch) result(resp *pb.TxnResponse, op int) *pb.TxnResponse {
	return resp.Responses[op].GetResponseTxn()
}

// conditional tells whether something else must hold for what is in the batch.
func (b *batch) conditional() bool {
	return slices.ContainsFunc(b.releases, func(g giving) bool { return g.e.parting != nil && len(g.e.parting.extra.If) > 0 }) ||
		slices.ContainsFunc(b.grants, func(g *grant) bool { return len(g.e.req.Extra.If) > 0 })
}
