package child

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/lease"
)

// The test binary is the supervisor too, and the commands that tests run.
func TestMain(m *testing.M) {
	code := 0
	switch {
	case os.Args[0] == "berth" && os.Args[1] == Verb:
		if err := Supervise(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "berth:", err)
			code = 1
		}
	case len(os.Args) > 1 && os.Args[1] == "job":
		if err := jobs[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, "job:", err)
			code = 98
		}
	default:
		goleak.VerifyTestMain(m)
	}
	unix.Exit(code) // not os.Exit, for which the race detector would take a second
}

// deadline is when a test or a job gives up waiting: far more than anything takes.
const deadline = 30 * time.Second

// jobs are what commands of tests do in addition to what a shell can.
var jobs = map[string]func([]string) error{
	"stubborn": jobStubborn, "daemon": jobDaemon, "worker": jobWorker,
}

// jobStubborn STARTED writes its pid to a file and does not stop when it is asked to.
func jobStubborn(a []string) error {
	signal.Ignore(syscall.SIGTERM)
	if err := writeWhole(filepath.Dir(a[0]), filepath.Base(a[0]), fmt.Append(nil, os.Getpid())); err != nil {
		return err
	}
	<-time.After(deadline) // it is to be killed
	return fmt.Errorf("it was not killed within %s", deadline)
}

// jobDaemon STARTED leaves a stubborn process behind, in a session of its own.
func jobDaemon(a []string) error {
	cmd := exec.Command(os.Args[0], "job", "stubborn", a[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return waitFor("no "+a[0], func() bool { return exists(a[0]) })
}

// jobWorker DIR N starts N commands, in folders of DIR, which write their pid into
// the folder they are in and wait.
func jobWorker(a []string) error {
	var n int
	if _, err := fmt.Sscan(a[1], &n); err != nil {
		return err
	}
	for i := range n {
		_, err := Start(os.Args[0], filepath.Join(a[0], fmt.Sprint(i)), Command{
			Argv: []string{"sh", "-c", fmt.Sprintf(`echo $$ > %d.new && mv %d.new %d.pid; exec sleep 1000`, i, i, i)},
			Env:  []string{"PATH=" + os.Getenv("PATH")}, Dir: a[0],
		}, lease.BootClock().Now()+time.Hour)
		if err != nil {
			return err
		}
	}
	<-time.After(deadline)
	return fmt.Errorf("it was not killed within %s", deadline)
}

func waitFor(otherwise string, done func() bool) error {
	late := time.After(deadline)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			return fmt.Errorf("%s within %s", otherwise, deadline)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
