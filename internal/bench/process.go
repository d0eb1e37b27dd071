package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/instance"
)

const (
	// processStop is how long a process has to stop by itself: longer than a sidecar
	// gives holders to stop.
	processStop = 15 * time.Second
	// sidecarStart bounds the start of a sidecar.
	sidecarStart = 30 * time.Second
	// sidecarPoll is how often it is checked whether a sidecar is ready.
	sidecarPoll = 20 * time.Millisecond
)

// Program is the binary of berth, which is run for the parts of a benchmark that need
// a process of their own.
type Program struct {
	Path string
	// Attributes keep the terminal's signals from the processes, and kill them with
	// this process where the system can do that.
	Attributes *syscall.SysProcAttr
	// Log gets what the processes write to stderr, concurrently.
	Log io.Writer

	settings config.Settings // how to reach etcd, but for the endpoints
}

// process is a running part of a benchmark, with a temporary directory.
type process struct {
	cmd  *exec.Cmd
	dir  string
	done chan struct{} // closed when it has ended
}

// start runs the program with arguments that depend on the directory, and returns the
// first line of text that it writes to its stdout; it must write no more there.
func (p *Program) start(env []string, arguments func(dir string) []string) (*process, string, error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, "", err
	}
	r := &process{cmd: exec.Command(p.Path, arguments(dir)...), dir: dir, done: make(chan struct{})}
	r.cmd.Env, r.cmd.Stderr, r.cmd.SysProcAttr = env, p.Log, p.Attributes
	out, in, err := os.Pipe()
	if err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	defer out.Close()
	r.cmd.Stdout = in
	if err := errors.Join(r.start(), in.Close()); err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s ended before it was ready", r.cmd), r.Stop())
	}
	return r, strings.TrimSpace(line), nil
}

// start starts the process from a goroutine that keeps its thread to itself, since the
// signal of a parent's death is that of the thread which forked.
func (p *process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // an error of what the process was for says more
			close(p.done)
		}
	}()
	return <-started
}

// PID returns the number of the process.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Stop asks the process to stop, kills it if it does not, and deletes its directory.
func (p *process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(processStop):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return os.RemoveAll(p.dir)
}

// startEtcd starts an etcd, and returns its endpoint.
func (p *Program) startEtcd(ctx context.Context) (*process, string, error) {
	r, endpoint, err := p.start(os.Environ(), func(dir string) []string {
		return []string{"bench", "etcd", "--dir", filepath.Join(dir, "etcd")}
	})
	if err == nil && ctx.Err() != nil {
		return nil, "", errors.Join(context.Cause(ctx), r.Stop())
	}
	return r, endpoint, err
}

// sidecarProcess is a sidecar in a process of its own.
type sidecarProcess struct{ *process }

// Start starts a sidecar as users do, and waits until it is ready.
func (p *Program) Start(ctx context.Context, o instance.Options) (Sidecar, error) {
	// Its first line of text states where it listens, which is known.
	r, _, err := p.start(p.environment(), func(dir string) []string { return p.arguments(o, dir) })
	if err != nil {
		return nil, err
	}
	s := &sidecarProcess{r}
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (p *Program) arguments(o instance.Options, dir string) []string {
	all := []string{
		"sidecar", "--endpoints", strings.Join(o.Endpoints, ","), "--prefix", o.Prefix, "--host", o.Host,
		"--listen", "", "--socket", socketIn(dir), "--state-dir", filepath.Join(dir, "state"), "--log-level", "error",
		"--drain-timeout", "0",
	}
	for flag, value := range map[string]string{
		"cacert": p.settings.CACert, "cert": p.settings.Cert, "key": p.settings.Key, "user": p.settings.User,
	} {
		if value != "" {
			all = append(all, "--"+flag, value)
		}
	}
	return all
}

func socketIn(dir string) string { return filepath.Join(dir, "berth.sock") }

// environment is this process' own without berth's settings: the arguments repeat
// those that count. A password is no argument.
func (p *Program) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BERTH_") {
			env = append(env, e)
		}
	}
	if password := p.settings.Password.Reveal(); password != "" {
		env = append(env, "BERTH_PASSWORD="+password)
	}
	return env
}

// Socket returns the path of the sidecar's socket.
func (s *sidecarProcess) Socket() string { return socketIn(s.dir) }

// ready waits until the sidecar is ready.
func (s *sidecarProcess) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sidecarStart)
	defer cancel()
	client := &client{socket: s.Socket()}
	defer client.close()
	for {
		if _, err := client.call(ctx, http.MethodGet, "http://localhost/readyz", nil, http.StatusOK); err == nil {
			return nil
		}
		select {
		case <-time.After(sidecarPoll):
		case <-s.done:
			return errors.New("the sidecar ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("the sidecar is not ready: %w", context.Cause(ctx))
		}
	}
}
