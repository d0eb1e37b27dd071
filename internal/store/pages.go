package store

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	// firstPage is how many keys the first page of a range has. The others have as many as
	// the size of the keys of the page before permits, up to maxPage: etcd counts all that
	// remains of the range for each page, so that many pages cost its square.
	firstPage = 1000
	maxPage   = 50_000
	// pageBytes is how much a page is to have, and pageGrowth how much larger than the
	// one before it may be in keys: so one of large values is no surprise.
	pageBytes  = 8 << 20
	pageGrowth = 4
	// pageTimeout bounds one page.
	pageTimeout = 10 * time.Second
)

// Pages is a range of keys that is read page by page, at one revision. Only the page in use
// is in memory.
type Pages struct {
	// Prefix is that of the keys.
	Prefix string
	// From is the first key, the first with the prefix if it is empty; End is the one after the
	// last, that of the prefix if it is nil.
	From string
	End  []byte
	// Revision is the one to read at; 0 is the present one. One that etcd no longer has is
	// [ErrCompacted].
	Revision int64
	// First and Most are how many keys the first page and each page have at most; 0 for the
	// defaults, which suit those who read all.
	First, Most int
	// KeysOnly leaves out the values.
	KeysOnly bool
}

// Page is a part of [Pages].
type Page struct {
	KVs []*mvccpb.KeyValue
	// Left is how many keys the range has from this page on.
	Left int64
	// More states that another page follows.
	More bool
}

// Each calls take with each page, in order, until it returns false. It returns the revision. All
// pages are of one history of etcd; otherwise the error is [ErrRestored] or [ErrOtherCluster].
func (p Pages) Each(ctx context.Context, b Backend, take func(Page) bool) (revision int64, err error) {
	most := p.Most
	if most == 0 {
		most = maxPage
	}
	limit := p.First
	if limit == 0 {
		limit = firstPage
	}
	limit = min(limit, most)
	key, end := p.bounds()
	revision = p.Revision
	ctx, history := InCluster(ctx, b), b.History()
	for {
		resp, err := readPage(ctx, b, &pb.RangeRequest{
			Key: key, RangeEnd: end, Limit: int64(limit), Revision: revision, KeysOnly: p.KeysOnly,
		})
		if err != nil {
			return 0, err
		}
		if b.History() != history {
			return 0, ErrRestored // the pages before are of another history
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		if !take(Page{KVs: resp.Kvs, Left: resp.Count, More: resp.More}) || !resp.More {
			return revision, nil
		}
		key, limit = append(resp.Kvs[len(resp.Kvs)-1].Key, 0), nextPage(limit, most, resp.Kvs)
	}
}

// bounds returns the first key, and the one after the last.
func (p Pages) bounds() (key, end []byte) {
	if key, end = []byte(p.From), p.End; p.From == "" {
		key = []byte(p.Prefix)
	}
	if end == nil {
		end = RangeEnd(p.Prefix)
	}
	return key, end
}

// Count returns how many keys the range has, and the revision at which it has them.
func (p Pages) Count(ctx context.Context, b Backend) (n, revision int64, err error) {
	key, end := p.bounds()
	resp, err := readPage(ctx, b, &pb.RangeRequest{Key: key, RangeEnd: end, Revision: p.Revision, CountOnly: true})
	if err != nil {
		return 0, 0, err
	}
	return resp.Count, resp.Header.Revision, nil
}

func readPage(ctx context.Context, b Backend, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return b.Range(ctx, r)
}

// nextPage is how many keys to ask for after a page.
func nextPage(limit, most int, kvs []*mvccpb.KeyValue) int {
	bytes := 0
	for _, kv := range kvs {
		bytes += SizeOf(kv)
	}
	fit := pageBytes / max(1, bytes/len(kvs))
	return max(1, min(fit, pageGrowth*limit, most))
}

// SizeOf returns how many bytes a key and its value have.
func SizeOf(kv *mvccpb.KeyValue) int { return len(kv.Key) + len(kv.Value) }

// Snapshot is all keys of a range at one revision.
type Snapshot struct {
	KVs      []*mvccpb.KeyValue
	Revision int64
	// History is the [Backend.History] that it is of.
	History uint64
	// Reason is why a [Feed] has read everything again: [ErrCompacted],
	// [ErrRestored] or [ErrBehind]. Nil is a feed's first snapshot, and one that no
	// feed has read.
	Reason error
}

// ReadRange reads all keys of a range at one revision, in pages.
func ReadRange(ctx context.Context, b Backend, keys KeyRange) (Snapshot, error) {
	return readAll(ctx, b, Pages{From: keys.Key, End: []byte(keys.End)})
}

// ReadAll reads everything under prefix at one revision, in pages.
func ReadAll(ctx context.Context, b Backend, prefix string) (Snapshot, error) {
	return ReadRange(ctx, b, Prefix(prefix))
}

// ReadAt reads everything under prefix as it was at a revision; 0 is the present one. A
// revision that etcd no longer has is [ErrCompacted].
func ReadAt(ctx context.Context, b Backend, prefix string, revision int64) (Snapshot, error) {
	return readAll(ctx, b, Pages{Prefix: prefix, Revision: revision})
}

// ReadKeys is [ReadAll] without the values and leases.
func ReadKeys(ctx context.Context, b Backend, prefix string) (Snapshot, error) {
	return readAll(ctx, b, Pages{Prefix: prefix, KeysOnly: true})
}

func readAll(ctx context.Context, b Backend, p Pages) (s Snapshot, err error) {
	s.History = b.History()
	s.Revision, err = p.Each(ctx, b, func(page Page) bool {
		if page.More && s.KVs == nil {
			s.KVs = make([]*mvccpb.KeyValue, 0, page.Left)
		}
		s.KVs = append(s.KVs, page.KVs...)
		return true
	})
	if err != nil {
		return Snapshot{}, err
	}
	return s, nil
}
