package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Watch follows a prefix through one endpoint, and asks that endpoint to end
// the watch when it has lost its leader.
func (c *Client) Watch(ctx context.Context, prefix string, from int64) Watch {
	conn, at := c.pick(&c.watches)
	// etcd's client has one stream for each set of metadata, and etcd tells no
	// progress on a stream while one of its watches begins at a revision that is
	// yet to come. So each watch gets metadata of its own, and asks for progress
	// with the same.
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx),
		"berth-watch", strconv.FormatUint(c.watched.Add(1), 10))
	ctx, cancel := context.WithCancel(ctx)
	w := &clientWatch{
		client:   c,
		conn:     conn.Client,
		ctx:      ctx,
		cancel:   cancel,
		failed:   func(err error) { c.fail(&c.watches, at, err) },
		messages: make(chan WatchMessage),
		ask:      make(chan struct{}, 1),
	}
	go w.run(prefix, from)
	go w.askProgress()
	return w
}

type clientWatch struct {
	client   *Client
	conn     *clientv3.Client
	ctx      context.Context // the watch's own, for requests on its stream
	cancel   context.CancelFunc
	failed   func(error) // moves later watches to another endpoint
	messages chan WatchMessage
	ask      chan struct{} // coalesces requests for progress
}

// Messages ends when the watch does.
func (w *clientWatch) Messages() <-chan WatchMessage { return w.messages }

// RequestProgress leaves the asking to a goroutine: etcd's client blocks in it
// while the stream is down.
func (w *clientWatch) RequestProgress() {
	select {
	case w.ask <- struct{}{}:
	default:
	}
}

// askProgress asks on the watch's own stream. A failure needs no handling: the
// silence that follows it tells.
func (w *clientWatch) askProgress() {
	for {
		select {
		case <-w.ask:
			_ = w.conn.RequestProgress(w.ctx)
		case <-w.ctx.Done():
			return
		}
	}
}

// Abandon ends the watch.
func (w *clientWatch) Abandon() {
	w.failed(ErrUnavailable)
	w.cancel()
}

// run opens the watch, which a dead endpoint holds up for as long as it likes,
// and passes on what it delivers.
func (w *clientWatch) run(prefix string, from int64) {
	defer close(w.messages)
	defer w.cancel()
	token, err := w.client.login.get(w.ctx)
	if err != nil {
		w.send(WatchMessage{Err: fmt.Errorf("watch: %w", err)})
		return
	}
	events := w.conn.Watch(w.ctx, prefix,
		clientv3.WithRange(string(RangeEnd(prefix))),
		clientv3.WithRev(from))
	for r := range events {
		m := WatchMessage{Err: classify("watch", r.Err())}
		if m.Err == nil {
			m.Err = w.client.checkCluster(r.Header.ClusterId)
		}
		switch {
		case m.Err != nil:
			m.Err = w.client.explain(w.ctx, m.Err, func() []Right { return ReadRights(prefix) })
			w.failed(m.Err)
			if w.client.login != nil && expiredBy(m.Err) {
				w.client.login.expired(token)
			}
		case len(r.Events) > 0:
			m.Events = make([]*mvccpb.Event, len(r.Events))
			for i, e := range r.Events {
				m.Events[i] = (*mvccpb.Event)(e)
			}
			m.Revision = m.Events[len(m.Events)-1].Kv.ModRevision
		case r.IsProgressNotify():
			m.Revision = r.Header.Revision
		default:
			continue
		}
		w.client.note(m.Revision)
		if !w.send(m) || m.Err != nil {
			return
		}
	}
	w.send(WatchMessage{Err: errors.Join(ErrUnavailable, errors.New("watch ended"))})
}

func (w *clientWatch) send(m WatchMessage) bool {
	select {
	case w.messages <- m:
		return true
	case <-w.ctx.Done():
		return false
	}
}

const (
	// pageSize is how many keys the first page of a [Snapshot] has, and each at least.
	// The others have more, up to maxPageSize, of keys that are small: etcd counts all
	// that remains of the range for each page, so that many pages cost its square.
	pageSize    = 2000
	maxPageSize = 50_000
	// pageBytes is how much a page is to have, and pageGrowth how much larger than the
	// one before it may be in keys: so one of large values is no surprise.
	pageBytes  = 8 << 20
	pageGrowth = 4
	// pageTimeout bounds one page.
	pageTimeout = 10 * time.Second
)

// Snapshot is everything under a prefix at one revision.
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

// ReadAll reads everything under prefix at one revision, in pages.
func ReadAll(ctx context.Context, b Backend, prefix string) (Snapshot, error) {
	return ReadAt(ctx, b, prefix, 0)
}

// ReadAt reads everything under prefix as it was at a revision; 0 is the present one. A
// revision that etcd no longer has is [ErrCompacted].
func ReadAt(ctx context.Context, b Backend, prefix string, revision int64) (Snapshot, error) {
	s := Snapshot{History: b.History(), Revision: revision}
	key, limit := []byte(prefix), pageSize
	for {
		resp, err := readPage(ctx, b, &pb.RangeRequest{
			Key: key, RangeEnd: RangeEnd(prefix), Limit: int64(limit), Revision: s.Revision,
		})
		if err != nil {
			return Snapshot{}, err
		}
		if s.Revision == 0 {
			s.Revision = resp.Header.Revision
		}
		if resp.More && s.KVs == nil {
			s.KVs = make([]*mvccpb.KeyValue, 0, resp.Count)
		}
		s.KVs = append(s.KVs, resp.Kvs...)
		if !resp.More {
			return s, nil
		}
		key, limit = append(s.KVs[len(s.KVs)-1].Key, 0), nextPage(limit, resp.Kvs)
	}
}

func readPage(ctx context.Context, b Backend, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	return b.Range(ctx, r)
}

// nextPage is how many keys to ask for after a page.
func nextPage(limit int, kvs []*mvccpb.KeyValue) int {
	bytes := 0
	for _, kv := range kvs {
		bytes += len(kv.Key) + len(kv.Value)
	}
	fit := pageBytes / max(1, bytes/len(kvs))
	return max(pageSize, min(fit, pageGrowth*limit, maxPageSize))
}
