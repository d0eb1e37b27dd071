//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
)

const (
	// scriptDeadline bounds what a script waits for.
	scriptDeadline = 2 * time.Minute
	// scriptPoll is the interval at which it polls.
	scriptPoll = 20 * time.Millisecond
)

// The scripts run the real binary. These commands are available in addition
// to those of testscript:
//
//	etcd                starts an etcd for this script and exports BERTH_ENDPOINTS
//	etcd stop|start     stops it, and starts it again at the same address
//	etcd put KEY VALUE  writes a key
//	etcd delete KEY     deletes a key
//	etcd tls            starts one that wants certificates of the authority of certs
//	frozen              exports an address in FROZEN whose process accepts connections, and never answers
//	answers TEXT        exports an address in ANSWERS whose process answers every connection with TEXT
//	proxy               puts a proxy before it, in PROXY_ENDPOINTS
//	proxy cut           cuts off who uses it
//	serve NAME …        runs a sidecar: see scriptServe
//	certs               makes an authority, in CA, a server's CERT and KEY, and the
//	                    CLIENT_CERT and CLIENT_KEY of a client called someone
//	$LOOPBACK           is an address of this host that no other script has
//	exits N CMD…        runs a command that must exit with N
//	until REGEXP CMD…   runs a command until its stdout matches
//	appears FILE        waits for a file
//	gone FILE           waits until the process is gone whose pid is in a file
//	signal SIG FILE     sends a signal to that process
func TestScripts(t *testing.T) {
	dir, files := "testdata/script", []string(nil)
	if testing.Short() { // For the race detector: the processes that have most goroutines.
		for _, name := range []string{"coordinator", "dev", "exec", "exec_lost", "exec_signals", "sidecar", "sidecar_killed", "sidecar_reload", "supervise", "worker"} {
			files = append(files, filepath.Join(dir, name+".txt"))
		}
		dir = ""
	}
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		Files:              files,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv(raceVar, raceOptions)
			root, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			env.Setenv("CHECKOUT", root)
			// Servers listen at fixed ports: each script has an address of its own.
			env.Setenv("LOOPBACK", fmt.Sprintf("127.%d.%d.1", 1+rand.IntN(63), rand.IntN(256)))
			env.Values[worldKey{}] = &world{tb: env.T().(testing.TB), served: map[string]*served{}}
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"etcd": scriptEtcd, "proxy": scriptProxy, "exits": scriptExits, "until": scriptUntil,
			"appears": scriptAppears, "gone": scriptGone, "signal": scriptSignal, "serve": scriptServe,
			"certs": scriptCerts, "answers": scriptAnswers, "frozen": scriptFrozen,
		},
	})
}

// world is what a script has in addition to its files.
type world struct {
	tb    testing.TB
	etcd  *embedtest.Members
	proxy *proxy
	// served are the sidecars that run, by name.
	served map[string]*served
}

type worldKey struct{}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

func scriptEtcd(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	switch {
	case len(args) == 0:
		w.etcd = embedtest.Cluster(w.tb, 1)
		ts.Setenv("BERTH_ENDPOINTS", strings.Join(w.etcd.Endpoints(), ","))
	case args[0] == "tls":
		pair := embed.TLS{CertFile: ts.Getenv("CERT"), KeyFile: ts.Getenv("KEY"), ClientCAFile: ts.Getenv("CA")}
		w.etcd = embedtest.Cluster(w.tb, 1, func(c *embed.Config) { c.TLS = &pair })
		ts.Setenv("BERTH_ENDPOINTS", strings.Join(w.etcd.Endpoints(), ","))
	case args[0] == "stop":
		w.etcd.Stop(0)
	case args[0] == "start":
		w.etcd.Restart(0)
	case args[0] == "put" && len(args) == 3:
		c := w.etcd.Client(w.tb)
		_, err := c.Txn(w.tb.Context(), putRequest(args[1], args[2]))
		ts.Check(err)
	case args[0] == "delete" && len(args) == 2:
		c := w.etcd.Client(w.tb)
		_, err := c.Txn(w.tb.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(args[1])}})
		ts.Check(err)
	default:
		ts.Fatalf("usage: etcd [tls|stop|start|put KEY VALUE|delete KEY]")
	}
}

func scriptProxy(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	if len(args) == 1 && args[0] == "cut" {
		w.proxy.cut()
		return
	}
	var err error
	w.proxy, err = startProxy(strings.TrimPrefix(w.etcd.Endpoints()[0], "http://"))
	ts.Check(err)
	ts.Defer(w.proxy.cut)
	ts.Setenv("PROXY_ENDPOINTS", w.proxy.address())
}

// listenFor listens at an address until the script ends, and calls serve for each connection.
func listenFor(ts *testscript.TestScript, serve func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	}()
	ts.Defer(func() {
		_ = l.Close()
		<-served
	})
	return l.Addr().String()
}

func scriptAnswers(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv("ANSWERS", listenFor(ts, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096)) // so that it is closed without a reset
		_, _ = conn.Write([]byte(strings.Join(args, " ") + "\r\n\r\n"))
		_ = conn.Close()
	}))
}

func scriptFrozen(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Setenv("FROZEN", listenFor(ts, func(conn net.Conn) { ts.Defer(func() { _ = conn.Close() }) }))
}

func scriptCerts(ts *testscript.TestScript, _ bool, _ []string) {
	authority := testcert.New(worldOf(ts).tb)
	server := authority.Server(worldOf(ts).tb)
	ts.Setenv("CA", authority.File)
	ts.Setenv("CERT", server.CertFile)
	ts.Setenv("KEY", server.KeyFile)
	client := authority.Client(worldOf(ts).tb, "someone")
	ts.Setenv("CLIENT_CERT", client.CertFile)
	ts.Setenv("CLIENT_KEY", client.KeyFile)
	expired := authority.Expired(worldOf(ts).tb)
	ts.Setenv("EXPIRED_CERT", expired.CertFile)
	ts.Setenv("EXPIRED_KEY", expired.KeyFile)
	ts.Setenv("OTHER_CA", testcert.New(worldOf(ts).tb).File)
}

func scriptExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	default:
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("it exited with %d instead of %d", got, want)
	}
}

func scriptUntil(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	eventually(ts, "stdout never matched "+args[0], func() bool {
		err := ts.Exec(args[1], args[2:]...)
		return err == nil && pattern.MatchString(ts.ReadFile("stdout"))
	})
}

func scriptAppears(ts *testscript.TestScript, _ bool, args []string) {
	eventually(ts, "no "+args[0], func() bool { return exists(ts.MkAbs(args[0])) })
}

func scriptGone(ts *testscript.TestScript, _ bool, args []string) {
	p, err := readPID(ts.MkAbs(args[0]))
	ts.Check(err)
	eventually(ts, "the process of "+args[0]+" still runs", func() bool { return !p.alive() })
}

func scriptSignal(ts *testscript.TestScript, _ bool, args []string) {
	s := unix.SignalNum("SIG" + args[0])
	p, err := readPID(ts.MkAbs(args[1]))
	ts.Check(err)
	if s == 0 {
		ts.Fatalf("there is no signal %s", args[0])
	}
	ts.Check(syscall.Kill(p.pid, s))
}

// eventually polls until something is done, at first often.
func eventually(ts *testscript.TestScript, otherwise string, done func() bool) {
	deadline := time.After(scriptDeadline)
	for look := scriptPoll; !done(); look = min(2*look, 25*scriptPoll) {
		select {
		case <-time.After(look):
		case <-deadline:
			ts.Fatalf("%s within %s", otherwise, scriptDeadline)
		}
	}
}
