package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthhq/berth/lease"
	workerchild "github.com/berthhq/berth/sidecar/worker/child"
)

func TestBerthSupervisesACommandOfAWorker(t *testing.T) {
	t.Setenv("BERTH_LOG_LEVEL", "loud") // would be refused, if it got so far
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := workerchild.Start(self, filepath.Join(t.TempDir(), "child"), workerchild.Command{
		Argv: []string{"sh", "-c", "cat; exit 3"}, Env: []string{"PATH=" + os.Getenv("PATH")}, Stdin: []byte("hello\n"),
	}, lease.BootClock().Now()+time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-c.Done():
	case <-time.After(jobDeadline):
		t.Fatal("it never ended")
	}
	text, err := os.ReadFile(c.Output())
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.Result(); err != nil || res.ExitCode != 3 || string(text) != "hello\n" {
		t.Errorf("%+v, %v, %q", res, err, text)
	}
}
