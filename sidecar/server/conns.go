package server

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// maxConns bounds the connections: enough for all streams and waits that the other bounds
	// allow. An idle one takes 20 KB.
	maxConns = 10_000
	// enoughConns are those with which one user or address, who can have half of them, can have all the
	// unanswered requests for claims, or the streams of events, that one identity can have: 2048.
	enoughConns = 4096
	// reservedConns are those that only root and the user of the process can have, so that an
	// operator always gets in.
	reservedConns = 16
	// filesPerConn is how many files the process may open for each connection: the others are for
	// etcd, processes and state files.
	filesPerConn = 2
)

// conns bounds the connections of a server: in total, and of one user or address, which can have half
// of them.
type conns struct {
	most, reserved int
	refused        func(why string) // is called for each that is refused; nil for nothing

	// mu guards what follows.
	mu  sync.Mutex
	all int
	of  map[string]int // by user or address
}

// newConns returns a bound; 0 is the most that the process has files for, [maxConns] at most.
func newConns(most int) *conns {
	if most == 0 {
		most = connsFor(openFiles())
	}
	return &conns{most: most, reserved: min(reservedConns, most/2), of: map[string]int{}}
}

// openFiles returns how many files the process may open: Go has raised the soft limit to the hard one.
func openFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return maxConns * filesPerConn
	}
	return uint64(limit.Cur)
}

// connsFor returns how many connections a process may have that may open so many files.
func connsFor(files uint64) int { return int(max(2, min(maxConns, files/filesPerConn))) }

// tooFew reports whether a process may open too few files for what a sidecar serves.
func tooFew(files uint64) bool { return connsFor(files) < enoughConns }

// origin is where a connection comes from: a user of this host, or an address.
type origin struct {
	name string
	// own reports that it is of root or of the user of the process.
	own bool
}

// originOf returns the origin of a connection, over the unix socket that of its peer.
func originOf(c net.Conn, p Peer) origin {
	switch _, local := c.(*net.UnixConn); {
	case !local:
		return origin{name: "address " + access.SourceOf(c.RemoteAddr().String())}
	case !p.Known:
		return origin{name: "an unknown user"}
	}
	return origin{name: "uid " + strconv.FormatUint(uint64(p.UID), 10), own: p.UID == 0 || int(p.UID) == os.Geteuid()}
}

// enter counts one more connection, until leave is called, once. Above a bound it returns why it is
// refused.
func (cs *conns) enter(o origin) (leave func(), why string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	all, each := cs.most-cs.reserved, max(cs.most/2, 1)
	if o.own {
		all, each = cs.most, each+cs.reserved
	}
	switch {
	case cs.of[o.name] >= each:
		return nil, fmt.Sprintf("%d connections of %s are open, which is the most for one user or address: close some", cs.of[o.name], o.name)
	case cs.all >= all:
		return nil, fmt.Sprintf("%d connections are open, which is the most: connect again later", cs.all)
	}
	cs.all++
	cs.of[o.name]++
	return func() { cs.leave(o) }, ""
}

func (cs *conns) leave(o origin) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.all--
	if cs.of[o.name]--; cs.of[o.name] == 0 {
		delete(cs.of, o.name)
	}
}

// refuseTimeout bounds the answer to a connection that is refused, which fits into its buffers.
const refuseTimeout = 10 * time.Millisecond

// accept returns the next connection that is within the bounds. It closes others, with an answer unless
// they speak TLS.
func (cs *conns) accept(l net.Listener, plain bool) (net.Conn, error) {
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		var of Peer
		if local, ok := c.(*net.UnixConn); ok {
			of = peerAt(local)
		}
		leave, why := cs.enter(originOf(c, of))
		if leave != nil {
			return &clientConn{Conn: c, peer: of, free: leave}, nil
		}
		if cs.refused != nil {
			cs.refused(why) // counted by the time the client learns of it
		}
		if plain && c.SetWriteDeadline(time.Now().Add(refuseTimeout)) == nil {
			_, _ = c.Write(refusalOf(why)) // the client may be gone
		}
		_ = c.Close() // it was never used
	}
}

// refusalOf is the answer to whatever is asked on a connection that is refused.
func refusalOf(why string) []byte {
	code := problem.TooManyRequests
	body, err := json.Marshal(map[string]any{"title": code.Title(), "status": code.Status(), "code": code, "detail": why})
	if err != nil {
		return nil
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		code.Status(), code.Title(), len(body), body)
}

// clientListener makes clientConns of the connections over TCP.
type clientListener struct {
	net.Listener
	conns *conns
	plain bool // without TLS
}

// Accept returns the next connection.
func (l *clientListener) Accept() (net.Conn, error) { return l.conns.accept(l.Listener, l.plain) }
