package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// loginTimeout bounds one login: to check a password takes etcd some 100 ms of a
	// processor, so many seconds where many log in at once. To give up earlier would only
	// add to that.
	loginTimeout = 10 * time.Second
	// loginHedge is how long one member has before another one is asked too.
	loginHedge = 2 * time.Second
	// A login that fails, or that soon proves good for nothing, is repeated after a pause,
	// which grows from loginPause to maxLoginPause.
	loginPause    = 200 * time.Millisecond
	maxLoginPause = 10 * time.Second
	loginGood     = time.Minute
)

// login is the one login of a client. Its token is good for all members of the cluster,
// so all connections share it: neither a request, nor a stream, nor another endpoint asks
// for another one. Etcd forgets a token some minutes after its last use, and whenever
// users are changed. Then the first request that fails triggers one new login, for all.
type login struct {
	// authenticate asks etcd for a token. An empty one is of an etcd without users.
	authenticate func(context.Context) (string, error)
	ctx          context.Context // ends with the client
	end          context.CancelFunc

	mu     sync.Mutex
	token  string
	have   bool
	made   time.Time
	busy   chan struct{} // closed when the login under way has ended; nil: none is
	err    error         // of the last login
	pauses *backoff.ExponentialBackOff
	next   time.Time // of the next login at the earliest
}

func newLogin(authenticate func(context.Context) (string, error)) *login {
	l := &login{authenticate: authenticate, pauses: backoff.NewExponentialBackOff()}
	l.pauses.InitialInterval, l.pauses.MaxInterval, l.pauses.Multiplier = loginPause, maxLoginPause, 2
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// get returns the token, and logs in if there is none. A nil login has none and needs
// none. After a login that failed it returns that error until the next one is due.
func (l *login) get(ctx context.Context) (string, error) {
	if l == nil {
		return "", nil
	}
	l.mu.Lock()
	if l.have {
		defer l.mu.Unlock()
		return l.token, nil
	}
	if l.busy == nil {
		pause := time.Until(l.next)
		if l.err != nil && pause > 0 {
			defer l.mu.Unlock()
			return "", l.err
		}
		l.busy = make(chan struct{})
		go l.do(pause)
	}
	busy := l.busy
	l.mu.Unlock()
	select {
	case <-busy:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.token, l.err
	case <-ctx.Done():
		return "", fmt.Errorf("%w: %w: %w", ErrNoLogin, ErrUnavailable, context.Cause(ctx))
	}
}

// do logs in after a pause. It is not bound to a request, which may have less time than
// a busy etcd takes.
func (l *login) do(pause time.Duration) {
	ctx, cancel := context.WithTimeout(l.ctx, max(0, pause)+loginTimeout)
	defer cancel()
	select {
	case <-time.After(pause):
	case <-l.ctx.Done():
	}
	token, err := l.authenticate(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.have, l.err, l.made = token, err == nil, err, time.Now()
	if err != nil { // no request was sent, so no outcome is unknown
		l.err = fmt.Errorf("%w: %w", ErrNoLogin, err)
		l.next = time.Now().Add(l.pauses.NextBackOff())
	}
	close(l.busy)
	l.busy = nil
}

// expired records that etcd did not know a token. It is forgotten unless there is another
// one by now.
func (l *login) expired(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.have || l.token != token {
		return
	}
	l.have, l.token, l.err = false, "", nil
	// Many clients get this error at once: they do not all log in at once.
	l.next = time.Now().Add(rand.N(loginPause))
	if time.Since(l.made) < loginGood {
		l.next = time.Now().Add(l.pauses.NextBackOff())
	} else {
		l.pauses.Reset()
	}
}

// forget forgets the token: it is of a cluster that another one has replaced.
func (l *login) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.have, l.token, l.err, l.next = false, "", nil, time.Time{}
}

// GetRequestMetadata has each request carry the token of now.
func (l *login) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == "" {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: l.token}, nil
}

// RequireTransportSecurity is for the operator to decide.
func (l *login) RequireTransportSecurity() bool { return false }

// logIn asks the endpoints for a token, one after the other: the next one when one has
// failed, or has not answered for a while. Whichever answers first is taken.
func (c *Client) logIn(ctx context.Context, user, password string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		token string
		from  *endpoint
		at    uint32
		err   error
	}
	first := c.logins.Load()
	answers := make(chan answer, len(c.conns))
	asked := 0
	ask := func() {
		at := first + uint32(asked)
		conn := c.conns[int(at)%len(c.conns)]
		asked++
		go func() {
			begin := time.Now()
			resp, err := pb.NewAuthClient(conn.leases.ActiveConnection()).Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
			if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthNotEnabled) {
				resp, err = &pb.AuthenticateResponse{}, nil
			}
			c.metrics.observe("login", begin, err)
			answers <- answer{resp.GetToken(), conn, at, err}
		}()
	}
	ask()
	hedge := time.NewTimer(loginHedge)
	defer hedge.Stop()
	var failed []string
	refused, lasting := 0, 0
	for {
		select {
		case a := <-answers:
			if a.err == nil {
				c.logins.Store(a.at)
				return a.token, nil
			}
			switch {
			case errors.Is(kindOf(a.err), ErrDenied):
				refused++
			case a.from.remote.Lasting():
				lasting++
			}
			failed = append(failed, a.from.loginSaid(user, a.err))
			if len(failed) == len(c.conns) {
				kind := ErrUnavailable
				if refused > 0 && refused+lasting == len(failed) {
					kind = ErrDenied
				}
				return "", fmt.Errorf("%w (%s)", kind, strings.Join(failed, "; "))
			}
			if asked < len(c.conns) {
				ask()
				hedge.Reset(loginHedge)
			}
		case <-hedge.C:
			if asked < len(c.conns) {
				ask()
				hedge.Reset(loginHedge)
			}
		}
	}
}

// loginSaid is [endpoint.said] of a login.
func (e *endpoint) loginSaid(user string, err error) string {
	if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthFailed) {
		return fmt.Sprintf("%s: authentication failed: etcd has no user %q with this password; set user and password_file to a user of this etcd", e.Endpoints()[0], user)
	}
	return e.said(e.explain("log in", err))
}

// operations are the names that errors have for what metrics call op.
var operations = map[string]string{
	"txn": "txn", "range": "range", "compact": "compact",
	"grant": "grant lease", "renew": "renew lease", "revoke": "revoke lease", "time_to_live": "read lease",
	"rights": "read rights",
}

// do sends one request through the endpoint that a kind of work uses. If etcd no longer
// knows its login, the request did nothing, and is sent once more after another
// login.
//
// The request is made in the history sent: the response counts only while the client works with
// its cluster.
func do[T any](ctx context.Context, c *Client, sent *history, role *atomic.Uint32, op string, send func(ctx context.Context, at *endpoint, token string) (T, error)) (T, error) {
	var none T
	if sent.cluster != 0 && IsReplaced(ctx, sent.cluster) {
		return none, fmt.Errorf("%s: %w: cluster %x has replaced the one that it was for", operations[op], ErrOtherCluster, sent.cluster)
	}
	ctx = context.WithValue(ctx, sentKey{}, sent)
	for again := false; ; again = true {
		token, err := c.login.get(ctx)
		if err != nil {
			return none, fmt.Errorf("%s: %w", operations[op], err)
		}
		at, n := c.pick(role)
		begin := time.Now()
		answer, err := send(ctx, at, token)
		if err == nil && sent.cluster != 0 { // for renewals, which share a stream
			err = c.cluster.check(sent, c.cluster.at.Load().cluster)
		}
		c.metrics.observe(op, begin, err)
		c.fail(role, n, err)
		if err == nil {
			at.failed.Store(false)
			return answer, nil
		}
		if err = at.explain(operations[op], err); c.login == nil || !expiredBy(err) {
			return none, err
		}
		if c.login.expired(token); again {
			return none, err
		}
	}
}

// expiredBy reports whether an error tells of a login that is of no use: unknown, or none
// where there are users since then.
func expiredBy(err error) bool {
	return errors.Is(err, ErrTokenExpired) || strings.Contains(err.Error(), rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty))
}
