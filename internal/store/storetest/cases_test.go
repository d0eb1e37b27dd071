package storetest

import (
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// A txnCase is a corner of etcd's transactions. It begins with the keys a, b and
// c at revision 1 (counted from an empty store), a put again at revision 2, and
// the leases 101 and 102, of which 101 holds c.
type txnCase struct {
	name string
	req  *pb.TxnRequest
	// want is the answer as text, or the class of the error.
	want string
	// events is what happened at the next revision, if anything.
	events string
}

const (
	duplicate = "duplicate key given in txn request"
	noLease   = "lease is gone"
	tooLarge  = "request is too large for etcd"
	emptyKey  = "key is not provided"
)

// caseSetup makes the state that every case begins with.
func caseSetup() []*pb.TxnRequest {
	return []*pb.TxnRequest{
		always(put("a"), put("b"), putOn("c", 101)),
		always(store.Put("a", []byte("w"), 0)),
	}
}

// mod compares the ModRevision, counted from the empty store, of a range or key.
// caseAt moves such compares to where the store really began.
func mod(key string, how pb.Compare_CompareResult, rev int64) *pb.Compare {
	return &pb.Compare{Result: how, Target: pb.Compare_MOD, Key: []byte(key),
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

// caseAt moves the revisions in a case's request by base.
func caseAt(req *pb.TxnRequest, base int64) {
	for _, c := range req.Compare {
		switch u := c.TargetUnion.(type) {
		case *pb.Compare_ModRevision:
			if u.ModRevision > 0 {
				u.ModRevision += base
			}
		case *pb.Compare_CreateRevision:
			if u.CreateRevision > 0 {
				u.CreateRevision += base
			}
		}
	}
	for _, ops := range [][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range ops {
			if r := op.GetRequestRange(); r != nil {
				for _, rev := range []*int64{&r.Revision, &r.MinModRevision, &r.MaxModRevision} {
					if *rev > 0 {
						*rev += base
					}
				}
			}
			if n := op.GetRequestTxn(); n != nil {
				caseAt(n, base)
			}
		}
	}
}

// txnCases returns all cases, each with a request of its own.
func txnCases() []txnCase {
	all := plainCases()
	all = append(all, compareCases()...)
	all = append(all, overlapCases()...)
	all = append(all, limitCases()...)
	return append(all, leaseCases()...)
}

func plainCases() []txnCase {
	const eq, lt = pb.Compare_EQUAL, pb.Compare_LESS
	return []txnCase{
		{"an empty transaction writes nothing", always(), "then", ""},
		{"a put makes a revision", always(put("d")), "then put@3", "3: put d=v/c3/m3/v1"},
		{"an overwrite keeps the create revision", always(put("a")), "then put@3", "3: put a=v/c1/m3/v3"},
		{"a put without a lease makes a key permanent", always(put("c")), "then put@3", "3: put c=v/c1/m3/v2"},
		{"a delete of nothing writes nothing", always(del("x"), delRange("x", "z")), "then del:0@2 del:0@2", ""},
		{"a delete of nothing behind a put counts its revision", always(put("d"), del("x")), "then put@3 del:0@3", "3: put d=v/c3/m3/v1"},
		{"a range is deleted in the order of its keys", always(delRange("a", "c")), "then del:2@3", "3: del a@3 del b@3"},
		{"a delete to the end", always(delRange("b", "\x00")), "then del:2@3", "3: del b@3 del c@3"},
		{"a reversed range is empty", always(delRange("c", "a"), read(span("c", "a"))), "then del:0@2 get( of 0)@2", ""},
		{"reads see earlier writes of the same transaction",
			always(put("d"), get("d"), del("a"), get("a"), read(span("a", "z"))),
			"then put@3 get(d=v/c3/m3/v1 of 1)@3 del:1@3 get( of 0)@3 get(b=v/c1/m1/v1 c=v/c1/m1/v1/l101 d=v/c3/m3/v1 of 3)@3",
			"3: put d=v/c3/m3/v1 del a@3"},
		{"a read at a revision does not see them",
			always(put("a"), read(&pb.RangeRequest{Key: []byte("a"), Revision: 2}), read(&pb.RangeRequest{Key: []byte("a"), Revision: 1})),
			"then put@3 get(a=w/c1/m2/v2 of 1)@3 get(a=v/c1/m1/v1 of 1)@3", "3: put a=v/c1/m3/v3"},
		{"a read at the revision being made fails", always(put("a"), read(&pb.RangeRequest{Key: []byte("a"), Revision: 3})), "mvcc: required revision is a future revision", ""},
		{"a read at a future revision in the branch not taken is ignored", txn(no(), then{read(&pb.RangeRequest{Key: []byte("a"), Revision: 9})}, then{put("d")}), "else put@3", "3: put d=v/c3/m3/v1"},
		{"count, keys and limit", always(
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), CountOnly: true}),
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), KeysOnly: true}),
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Limit: 2}),
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Limit: 3})),
			"then get( of 3)@2 get(a=/c1/m2/v2 b=/c1/m1/v1 c=/c1/m1/v1 of 3)@2" +
				" get(a=w/c1/m2/v2 b=v/c1/m1/v1 of 3+)@2 get(a=w/c1/m2/v2 b=v/c1/m1/v1 c=v/c1/m1/v1/l101 of 3)@2", ""},
		{"those that were put between two revisions", always(
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), MinModRevision: 2}),
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), MaxModRevision: 1, Limit: 1}),
			read(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), MinModRevision: 1, MaxModRevision: 1, KeysOnly: true})),
			"then get(a=w/c1/m2/v2 of 3)@2 get(b=v/c1/m1/v1 of 3+)@2 get(b=/c1/m1/v1 c=/c1/m1/v1 of 3)@2", ""},
		{"a nested compare does not see what an elder sibling put",
			always(nest(nil, then{put("d")}, nil), nest(ifs{store.Present("d")}, then{put("e")}, then{get("d")})),
			"then [then put@3] [else get(d=v/c3/m3/v1 of 1)@3]", "3: put d=v/c3/m3/v1"},
		{"a nested compare does not see what an elder sibling deleted",
			always(nest(nil, then{del("a")}, nil), nest(ifs{store.Present("a")}, then{put("e")}, nil)),
			"then [then del:1@3] [then put@3]", "3: del a@3 put e=v/c3/m3/v1"},
		{"nested transactions two deep share the revision",
			always(nest(nil, then{nest(ifs{mod("a", eq, 2)}, then{put("d")}, nil)}, nil), nest(ifs{mod("a", lt, 2)}, then{put("f")}, then{put("e")})),
			"then [then [then put@3]] [else put@3]", "3: put d=v/c3/m3/v1 put e=v/c3/m3/v1"},
		{"an operation without a request is refused", always(&pb.RequestOp{}), "key not found", ""},
		{"an empty key is refused", always(put("")), emptyKey, ""},
		{"an empty key of a delete is refused", always(del("")), emptyKey, ""},
		{"an empty key of a read is refused, in a branch not taken too", txn(no(), then{get("")}, nil), emptyKey, ""},
		{"an empty key of a compare is refused", txn(ifs{mod("", eq, 0)}, nil, nil), emptyKey, ""},
	}
}

func compareCases() []txnCase {
	const eq, ne, lt, gt = pb.Compare_EQUAL, pb.Compare_NOT_EQUAL, pb.Compare_LESS, pb.Compare_GREATER
	holds := func(name string, want bool, c ...*pb.Compare) txnCase {
		said := map[bool]string{true: "then", false: "else"}
		return txnCase{name: name, req: txn(c, nil, nil), want: said[want]}
	}
	return []txnCase{
		holds("mod equal", true, mod("a", eq, 2)),
		holds("mod not equal", false, mod("a", ne, 2)),
		holds("mod greater", true, mod("a", gt, 1)),
		holds("mod less", false, mod("a", lt, 2)),
		holds("create equal", true, store.CreateEquals("a", 1)),
		holds("version equal", true, compareVersion("a", eq, 2)),
		holds("version less", false, compareVersion("a", lt, 2)),
		holds("value equal", true, compareValue("a", eq, "w")),
		holds("value greater", true, compareValue("a", gt, "v")),
		holds("value not equal", true, compareValue("a", ne, "v")),
		holds("lease equal", true, compareLease("c", eq, 101)),
		holds("lease of a key without", true, compareLease("a", eq, 0)),
		holds("all must hold", false, mod("a", eq, 2), mod("b", eq, 2)),
		holds("absent: mod is zero", true, mod("x", eq, 0)),
		holds("absent: mod is less than anything", true, mod("x", lt, 1)),
		holds("absent: create is not above zero", false, store.Present("x")),
		holds("absent: version is zero", true, compareVersion("x", eq, 0)),
		holds("absent: lease is zero", true, compareLease("x", eq, 0)),
		holds("absent: a value equals nothing", false, compareValue("x", eq, "")),
		holds("absent: a value differs from nothing", false, compareValue("x", ne, "v")),
		holds("range: no put since its last", true, over(mod("a", lt, 3), "d")),
		holds("range: one put is enough to fail", false, over(mod("a", lt, 2), "d")),
		holds("range: all must hold", false, over(mod("a", eq, 1), "d")),
		holds("range: to the end", true, over(mod("b", eq, 1), "\x00")),
		holds("range: empty means zeros", true, over(mod("x", eq, 0), "z")),
		holds("range: reversed means empty", true, over(mod("c", eq, 0), "a")),
		holds("range: empty has no value", false, over(compareValue("x", ne, "v"), "z")),
		holds("an unknown relation holds", true, &pb.Compare{Result: 9, Key: []byte("a"), Target: pb.Compare_MOD}),
		holds("an unknown target is equal", true, &pb.Compare{Result: eq, Key: []byte("a"), Target: 9}),
		holds("an operand of another kind is zero", true, &pb.Compare{Result: gt, Key: []byte("a"), Target: pb.Compare_MOD,
			TargetUnion: &pb.Compare_Version{Version: 99}}),
		holds("no operand is zero", true, &pb.Compare{Result: gt, Key: []byte("a"), Target: pb.Compare_MOD}),
	}
}

func overlapCases() []txnCase {
	return []txnCase{
		{"a key put twice is refused", always(put("d"), put("d")), duplicate, ""},
		{"put and delete of a key is refused", always(put("d"), del("d")), duplicate, ""},
		{"delete and put of a key is refused", always(del("a"), put("a")), duplicate, ""},
		{"put and delete of a range around it is refused", always(put("d"), delRange("c", "e")), duplicate, ""},
		{"put at the end of a deleted range passes", always(put("e"), delRange("c", "e")), "then put@3 del:1@3", "3: put e=v/c3/m3/v1 del c@3"},
		{"put and delete from a key on passes, unlike other ranges", always(put("d"), delRange("b", "\x00")), "then put@3 del:3@3", "3: put d=v/c3/m3/v1 del b@3 del c@3 del d@3"},
		{"delete from a key on and put passes", always(delRange("b", "\x00"), put("b")), "then del:2@3 put@3", "3: del b@3 del c@3 put b=v/c3/m3/v1"},
		{"delete twice passes", always(del("a"), del("a"), delRange("a", "b")), "then del:1@3 del:0@3 del:0@3", "3: del a@3"},
		{"then and else may share a key", txn(no(), then{put("d")}, then{put("d")}), "else put@3", "3: put d=v/c3/m3/v1"},
		{"then may put what else deletes", txn(nil, then{put("a")}, then{del("a")}), "then put@3", "3: put a=v/c1/m3/v3"},
		{"a nested then and else may share a key", always(nest(no(), then{put("d")}, then{put("d")})), "then [else put@3]", "3: put d=v/c3/m3/v1"},
		{"then and else may share it two deep", always(nest(no(), then{nest(nil, then{put("d")}, nil)}, then{put("d")})), "then [else put@3]", "3: put d=v/c3/m3/v1"},
		{"siblings may not put the same key", always(nest(nil, then{put("d")}, nil), nest(nil, then{put("d")}, nil)), duplicate, ""},
		{"not even where one is not taken", always(nest(no(), then{put("d")}, nil), nest(nil, then{put("d")}, nil)), duplicate, ""},
		{"not even then of one and else of the other", always(nest(nil, then{put("d")}, nil), nest(nil, nil, then{put("d")})), duplicate, ""},
		{"a sibling may delete what an elder one puts", always(nest(nil, then{put("d")}, nil), nest(nil, then{del("d")}, nil)), "then [then put@3] [then del:1@3]", "3: put d=v/c3/m3/v1 del d@3"},
		{"a sibling may delete and its nested one too", always(nest(nil, then{put("a")}, nil), nest(nil, then{nest(nil, then{delRange("a", "c")}, nil)}, nil)), "then [then put@3] [then [then del:2@3]]", "3: put a=v/c1/m3/v3 del a@3 del b@3"},
		{"a sibling may not put what an elder one deletes", always(nest(nil, then{del("a")}, nil), nest(nil, then{put("a")}, nil)), duplicate, ""},
		{"not even what an elder one would delete", always(nest(nil, nil, then{delRange("a", "c")}), nest(nil, then{put("b")}, nil)), duplicate, ""},
		{"the parent may not put what a child puts", always(nest(nil, then{put("d")}, nil), put("d")), duplicate, ""},
		{"the parent may not put what a child deletes", always(put("a"), nest(nil, then{del("a")}, nil)), duplicate, ""},
		{"the parent may not delete what a child puts", always(nest(nil, then{put("d")}, nil), del("d")), duplicate, ""},
		{"the parent may delete what a child deletes", always(nest(nil, then{del("a")}, nil), del("a")), "then [then del:1@3] del:0@3", "3: del a@3"},
		{"put, deleted and put again is refused", always(nest(nil, then{put("d")}, nil), nest(nil, then{del("d")}, nil), nest(nil, then{put("d")}, nil)), duplicate, ""},
		{"a duplicate deep in a branch not taken is refused", txn(no(), then{nest(no(), then{put("d"), put("d")}, nil)}, then{put("e")}), duplicate, ""},
	}
}

func limitCases() []txnCase {
	const tooMany = tooLarge // berth tells them apart by their text alone
	compares := func(n int) ifs {
		all := make(ifs, n)
		for i := range all {
			all[i] = mod("a", pb.Compare_GREATER, 0)
		}
		return all
	}
	big := func(n int) *pb.RequestOp { return store.Put("d", make([]byte, n), 0) }
	nests := func(n, ops int) then {
		all := make(then, n)
		for i := range all {
			all[i] = nest(nil, many(ops, get), nil)
		}
		return all
	}
	return []txnCase{
		{"128 compares, 128 then and 128 else", txn(compares(128), many(128, del), many(128, put)), "then" + strings.Repeat(" del:0@2", 128), ""},
		{"129 compares", txn(compares(129), nil, nil), tooMany, ""},
		{"129 then", txn(no(), many(129, get), nil), tooMany, ""},
		{"129 else, not taken", txn(nil, nil, many(129, get)), tooMany, ""},
		{"one child with 127", always(nests(1, 127)...), "then [then" + strings.Repeat(" get( of 0)@2", 127) + "]", ""},
		{"one child with 128", always(nests(1, 128)...), tooMany, ""},
		{"two children with 127", always(nests(2, 127)...), tooMany, ""},
		{"three children with 100", always(nests(3, 100)...), "then" + strings.Repeat(" [then"+strings.Repeat(" get( of 0)@2", 100)+"]", 3), ""},
		{"a child has less where the parent has many compares", txn(compares(28), nests(1, 101), nil), tooMany, ""},
		{"a child has less where the other branch is long", txn(nil, nests(1, 100), many(29, get)), tooMany, ""},
		{"a value of 1500 KiB", always(big(1500 << 10)), "then put@3", "3: put d=1536000 bytes/c3/m3/v1"},
		{"a value of 1536 KiB", always(big(1536 << 10)), tooLarge, ""},
		{"a value of 1536 KiB in the branch not taken", txn(nil, nil, then{big(1536 << 10)}), tooLarge, ""},
		{"a duplicate is found before the size", always(big(1536<<10), del("d")), duplicate, ""},
		{"reads have no such limit", txn(ifs{compareValue("a", pb.Compare_EQUAL, strings.Repeat("x", 1536<<10))}, nil, then{get("x")}), "else get( of 0)@2", ""},
		{"a read inside a child does", txn(ifs{compareValue("a", pb.Compare_EQUAL, strings.Repeat("x", 1536<<10))}, nil, then{nest(nil, then{get("x")}, nil)}), tooLarge, ""},
	}
}

func leaseCases() []txnCase {
	return []txnCase{
		{"a put on a lease", always(putOn("d", 101)), "then put@3", "3: put d=v/c3/m3/v1/l101"},
		{"a put on another lease moves the key", always(putOn("c", 102)), "then put@3", "3: put c=v/c1/m3/v2/l102"},
		{"a missing lease fails all", always(put("d"), putOn("e", 999)), noLease, ""},
		{"a missing lease in a taken child fails its siblings", always(nest(nil, then{put("d")}, nil), nest(nil, then{putOn("e", 999)}, nil)), noLease, ""},
		{"a missing lease on a path not taken is ignored", txn(no(), then{putOn("e", 999)}, then{put("d"), nest(no(), then{putOn("f", 999)}, nil)}), "else put@3 [else]", "3: put d=v/c3/m3/v1"},
		{"the first fault on the path is reported", always(putOn("d", 999), read(&pb.RangeRequest{Key: []byte("a"), Revision: 9})), noLease, ""},
		{"also if it is a read", always(read(&pb.RangeRequest{Key: []byte("a"), Revision: 9}), putOn("d", 999)), "mvcc: required revision is a future revision", ""},
		{"a duplicate is found before a missing lease", always(putOn("d", 999), put("d")), duplicate, ""},
	}
}
