//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/sidecar/client"
)

// scriptServe runs a sidecar, dev, a coordinator or a worker under a name:
//
//	serve NAME FLAGS…   starts it, with NAME.sock and NAME.state, waits until it
//	                    answers, and exports its HTTP address as NAME in capitals
//	serve NAME dev …    the same for berth dev
//	serve NAME server … the same for berth server, with NAME.sock and its data in NAME.data
//	serve NAME coordinator …  the same for berth coordinator, with an address if it has --listen
//	serve NAME worker …  the same for berth worker, with its state in NAME.state
//	serve NAME stop     ends it with TERM and waits; it must exit with 0
//	serve NAME leave    the same with HUP
//	serve NAME ends     waits for the end that was asked for; it must exit with 0
//	serve NAME kill     kills it and waits
//	serve NAME SIGNAL   sends a signal
func scriptServe(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	name, rest := args[0], args[1:]
	verb := ""
	if len(rest) > 0 {
		verb = rest[0]
	}
	s := w.served[name]
	switch {
	case s == nil && (verb == "dev" || verb == "coordinator"):
		w.served[name] = startServed(ts, name, rest...)
	case s == nil && verb == "server":
		w.served[name] = startServed(ts, name, append(rest, "--listen", "127.0.0.1:0", "--socket", ts.MkAbs(name+".sock"), "--data-dir", ts.MkAbs(name+".data"))...)
	case s == nil && verb == "worker":
		w.served[name] = startServed(ts, name, append(rest, "--state-dir", ts.MkAbs(name+".state"))...)
	case s == nil:
		w.served[name] = startServed(ts, name, append([]string{
			"sidecar", "--listen", "127.0.0.1:0", "--socket", ts.MkAbs(name + ".sock"), "--state-dir", ts.MkAbs(name + ".state"),
		}, rest...)...)
	case verb == "stop":
		s.end(ts, unix.SIGTERM, 0)
		delete(w.served, name)
	case verb == "leave":
		s.end(ts, unix.SIGHUP, 0)
		delete(w.served, name)
	case verb == "ends":
		s.end(ts, 0, 0)
		delete(w.served, name)
	case verb == "kill":
		s.end(ts, unix.SIGKILL, -1)
		delete(w.served, name)
	default:
		ts.Check(s.cmd.Process.Signal(unix.SignalNum("SIG" + verb)))
	}
}

// served is a running sidecar, dev, coordinator or worker.
type served struct {
	cmd *exec.Cmd
	at  addresses
}

func startServed(ts *testscript.TestScript, name string, args ...string) *served {
	path := filepath.Join(binDir(ts), "berth")
	out, in, err := os.Pipe()
	ts.Check(err)
	log, err := os.Create(ts.MkAbs(name + ".log"))
	ts.Check(err)
	cmd := exec.Command(path, append(args, "-o", "json")...)
	cmd.Args[0] = "berth"
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{
		"BERTH_ENDPOINTS=" + ts.Getenv("BERTH_ENDPOINTS"), "PATH=" + ts.Getenv("PATH"), "HOME=" + ts.MkAbs("."),
		raceVar + "=" + raceOptions,
	}
	cmd.Stdout, cmd.Stderr = in, log
	ts.Check(cmd.Start())
	ts.Check(in.Close())
	ts.Check(log.Close())
	s := &served{cmd: cmd}
	ts.Defer(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
	})
	err = json.NewDecoder(out).Decode(&s.at)
	_ = out.Close()
	if err != nil {
		text, _ := os.ReadFile(ts.MkAbs(name + ".log"))
		ts.Fatalf("%s did not start: %v\n%s", name, err, text)
	}
	ts.Setenv(strings.ToUpper(name), s.at.HTTP)
	if s.at.Socket == "" {
		return s // coordinators and workers tell when they are there
	}
	if s.at.Etcd != "" {
		ts.Setenv("BERTH_ENDPOINTS", s.at.Etcd)
	}
	eventually(ts, name+" is not ready", func() bool {
		client, err := client.Dial(s.at.Socket, "")
		ts.Check(err)
		defer client.Close()
		return client.Ready(worldOf(ts).tb.Context()) == nil
	})
	return s
}

// binDir is where testscript has put the programs.
func binDir(ts *testscript.TestScript) string {
	dir, _, _ := strings.Cut(ts.Getenv("PATH"), string(os.PathListSeparator))
	return dir
}

func (s *served) end(ts *testscript.TestScript, by syscall.Signal, want int) {
	ts.Check(s.cmd.Process.Signal(by))
	_ = s.cmd.Wait() // the code says it
	if got := s.cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("it exited with %d instead of %d", got, want)
	}
}
