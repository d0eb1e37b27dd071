package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Watch follows a range of keys through one endpoint, and asks that endpoint to end
// the watch when it has lost its leader.
func (c *Client) Watch(ctx context.Context, keys KeyRange, from int64) Watch {
	conn, at := c.pick(&c.watches)
	// etcd's client has one stream for each set of metadata, and etcd tells no
	// progress on a stream while one of its watches begins at a revision that is
	// yet to come. So each watch gets metadata of its own, and asks for progress
	// with the same.
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx),
		"berth-watch", strconv.FormatUint(c.watched.Add(1), 10))
	sent := c.cluster.at.Load()
	ctx, cancel := context.WithCancel(context.WithValue(ctx, sentKey{}, sent))
	w := &clientWatch{
		client:   c,
		sent:     sent,
		conn:     conn.Client,
		ctx:      ctx,
		cancel:   cancel,
		failed:   func(err error) { c.fail(&c.watches, at, err) },
		messages: make(chan WatchMessage),
		started:  make(chan struct{}),
		ask:      make(chan struct{}, 1),
	}
	go w.run(keys, from)
	go w.askProgress()
	return w
}

type clientWatch struct {
	client   *Client
	sent     *history // that it began in
	conn     *clientv3.Client
	ctx      context.Context // the watch's own, for requests on its stream
	cancel   context.CancelFunc
	failed   func(error) // moves later watches to another endpoint
	messages chan WatchMessage
	started  chan struct{} // closed when etcd has begun to watch, or can't
	ask      chan struct{} // coalesces requests for progress
}

// Started is closed when etcd has begun to watch, or the watch has failed.
func (w *clientWatch) Started() <-chan struct{} { return w.started }

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
func (w *clientWatch) run(keys KeyRange, from int64) {
	defer close(w.messages)
	defer w.cancel()
	begun := sync.OnceFunc(func() { close(w.started) })
	defer begun()
	token, err := w.client.login.get(w.ctx)
	if err == nil && w.sent.cluster != 0 && IsReplaced(w.ctx, w.sent.cluster) {
		err = ErrOtherCluster
	}
	if err != nil {
		w.send(WatchMessage{Err: fmt.Errorf("watch: %w", err)})
		return
	}
	events := w.conn.Watch(w.ctx, keys.Key,
		clientv3.WithRange(keys.End),
		clientv3.WithRev(from)) // which returns when etcd has answered that it watches
	begun()
	for r := range events {
		m := WatchMessage{Err: classify("watch", r.Err())}
		switch {
		case m.Err != nil:
			m.Err = w.client.explain(w.ctx, m.Err, func() []Right { return []Right{{false, keys}} })
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
		w.client.cluster.note(w.sent, m.Revision)
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
