package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/testlog"
)

// listening is a server with few connections, over TCP and a unix socket.
type listening struct {
	*Listeners
	*Handler
	socket string
	log    testlog.Buffer
	server *Server
}

func listen(t *testing.T, most int) *listening {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := &listening{socket: filepath.Join(dir, "s")}
	cfg := Config{Listen: "127.0.0.1:0", Socket: l.socket, SocketMode: 0o666, MaxConns: most}
	on, err := Listen(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })
	l.Listeners, l.Handler = on, NewHandler(Handler{
		Config: cfg, Routes: mux, Metrics: NewMetrics(nil), Log: hclog.New(&hclog.LoggerOptions{Output: &l.log, Level: hclog.Info}),
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) int {
			http.Error(w, err.Error(), problem.CodeOf(err).Status())
			return problem.CodeOf(err).Status()
		},
	})
	l.server = Serve(on, l.Handler)
	t.Cleanup(l.close)
	return l
}

func (l *listening) close() {
	_ = l.server.Close()
	_ = l.Listeners.Close()
}

// dial connects as a user of this host, over the socket or over TCP.
func (l *listening) dial(t *testing.T, network string, uid int) net.Conn {
	t.Helper()
	addr := l.socket
	if network == "tcp" {
		addr = l.Addr().String()
	}
	var conn net.Conn
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if uid != os.Geteuid() {
			runtime.LockOSThread() // the thread ends with the goroutine
			const same = ^uintptr(0)
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); e != 0 {
				err = e
				return
			}
		}
		conn, err = (&net.Dialer{}).DialContext(context.Background(), network, addr)
	}()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// asks sends a request on a connection, and returns the answer; 0 if there is none.
func asks(c net.Conn) (status int, body string) {
	_, _ = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") // it may be closed
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// TestConnectionsOfOneUserShutOutNoOther has one user, and all processes of this host over TCP, open more
// connections than they can have, on which nothing more is asked.
func TestConnectionsOfOneUserShutOutNoOther(t *testing.T) {
	const most, alice, bob = 60, 61001, 61002
	root := os.Geteuid() == 0
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			by, others := os.Geteuid(), []int{os.Geteuid()}
			if root {
				by, others = alice, []int{bob, 0}
			} else if network == "unix" {
				t.Skip("only root can connect as two users")
			}
			l := listen(t, most)
			for n := range most / 2 {
				if status, body := asks(l.dial(t, network, by)); status != http.StatusOK {
					t.Fatalf("connection %d: %d %s", n, status, body)
				}
			}
			for range 3 * lograte.Most {
				// The answer comes unasked: what is sent to a connection that is closed may hide it.
				resp, err := http.ReadResponse(bufio.NewReader(l.dial(t, network, by)), nil)
				if err != nil || resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
					t.Fatalf("one too many: %v, %v", resp, err)
				}
				if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), `"code":"too_many_requests"`) {
					t.Errorf("%s, %v", text, err)
				}
			}
			if n := testutil.ToFloat64(l.Metrics.bounds.WithLabelValues(boundConns)); n != 3*lograte.Most {
				t.Errorf("%v refusals are counted", n)
			}
			for _, other := range others {
				if status, body := asks(l.dial(t, "unix", other)); status != http.StatusOK {
					t.Errorf("uid %d over the socket: %d %s", other, status, body)
				}
			}
			l.close()
			if log := l.log.String(); strings.Count(log, "a connection was refused") > lograte.Most || !strings.Contains(log, "kind=connections suppressed=") {
				t.Errorf("the log:\n%s", log)
			}
		})
	}
}
