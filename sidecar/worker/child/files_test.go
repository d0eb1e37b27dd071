package child

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
)

func TestACommandReadsBack(t *testing.T) {
	c := Command{
		Argv: []string{"a", "", "\xff", "b\nc"}, Env: []string{"A=1", "B=", "A=\xfe="}, Dir: "/x\xff",
		Stdin: []byte("in"), StopGrace: time.Second, Timeout: time.Minute,
	}
	got, hasStdin, err := decodeCommand(encodeCommand(c))
	if err != nil || !hasStdin {
		t.Fatalf("%t, %v", hasStdin, err)
	}
	c.Env, c.Stdin, c.OutputLimit = []string{"A=\xfe=", "B="}, nil, DefaultOutputLimit
	if diff := cmp.Diff(c, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFilesOfOtherVersionsAreRefused(t *testing.T) {
	later := []byte(`{"v":2,"more":true}`)
	_, _, ofCommand := decodeCommand(later)
	_, ofResult := decodeResult(later)
	_, ofRunning := decodeRunning(later)
	for name, err := range map[string]error{commandName: ofCommand, resultName: ofResult, runningName: ofRunning} {
		var file *FileError
		var version *store.VersionError
		if !errors.As(err, &file) || file.Name != name || !errors.As(err, &version) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTextsOfAResultAreBounded(t *testing.T) {
	now := time.Now().UTC()
	r, err := decodeResult(encodeResult(Result{
		StartedAt: now, EndedAt: now, Reason: "a\nb\x00", Error: strings.Repeat("ä", maxText),
	}))
	if err != nil || r.Reason != "a b " || len(r.Error) > maxText || !strings.HasSuffix(r.Error, "ä…") {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzDecodeCommand(f *testing.F) {
	f.Add(encodeCommand(Command{Argv: []string{"true"}}))
	f.Add(encodeCommand(Command{Argv: []string{"sh", "-c", "x"}, Env: []string{"A=b"}, Dir: "/", Stdin: []byte("x"), Timeout: 1}))
	f.Add([]byte(`{"v":1,"argv":[],"stop_grace":0,"output_limit":1}`))
	f.Add([]byte(`{"v":1,"argv":["dHJ1ZQ=="],"stop_grace":-1,"output_limit":1}`))
	f.Add([]byte(`{"v":1,"argv":["dHJ1ZQ=="],"env":["QQ=="],"stop_grace":0,"output_limit":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, hasStdin, err := decodeCommand(data)
		if err != nil {
			isFileError(t, err, commandName)
			return
		}
		if err := c.validate(); err != nil || c.OutputLimit <= 0 {
			t.Fatalf("%q is taken as %+v: %v", data, c, err)
		}
		again := c
		if hasStdin {
			again.Stdin = []byte("x")
		}
		back, has, err := decodeCommand(encodeCommand(again))
		c.Env = lastOfEach(c.Env)
		if err != nil || has != hasStdin || len(c.Env) != len(back.Env) || !reflect.DeepEqual(c.Argv, back.Argv) || c.Dir != back.Dir {
			t.Errorf("%q is %+v, and that is %+v, %v", data, c, back, err)
		}
	})
}

func FuzzDecodeResult(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	f.Add(encodeResult(Result{StartedAt: at, EndedAt: at}))
	f.Add(encodeResult(Result{ExitCode: 137, Signal: "SIGKILL", StartedAt: at, EndedAt: at.Add(1), Took: 1, Stopped: ByExpiry, Reason: "x", OutputCut: 3}))
	f.Add(encodeResult(Result{ExitCode: 127, StartedAt: at, EndedAt: at, Error: "not found"}))
	f.Add([]byte(`{"v":1,"exit_code":256,"started_at":"2026-01-02T03:04:05Z","ended_at":"2026-01-02T03:04:05Z","took":0}`))
	f.Add([]byte(`{"v":1,"exit_code":0,"stopped":"else","started_at":"2026-01-02T03:04:05Z","ended_at":"2026-01-02T03:04:05Z","took":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeResult(data)
		if err != nil {
			isFileError(t, err, resultName)
			return
		}
		if r.ExitCode < 0 || r.ExitCode > 255 || r.StartedAt.IsZero() || r.OutputCut < 0 {
			t.Fatalf("%q is taken as %+v", data, r)
		}
		back, err := decodeResult(encodeResult(r))
		if err != nil || back.ExitCode != r.ExitCode || back.Stopped != r.Stopped || !back.EndedAt.Equal(r.EndedAt) {
			t.Errorf("%q is %+v, and that is %+v, %v", data, r, back, err)
		}
	})
}

func FuzzDecodeValidity(f *testing.F) {
	for _, until := range []time.Duration{0, 1, time.Hour, math.MaxInt64} {
		f.Add(encodeValidity(until))
	}
	f.Add(encodeValidity(-1))
	f.Add([]byte("v1 -0000000000000000001 00000000\n"))
	f.Add(encodeValidity(time.Hour)[1:])
	f.Fuzz(func(t *testing.T, data []byte) {
		until, err := decodeValidity(data)
		if err != nil {
			isFileError(t, err, validityName)
			return
		}
		if until < 0 || !bytes.Equal(encodeValidity(until), data) || len(data) != len(encodeValidity(0)) {
			t.Errorf("%q is taken as %s", data, until)
		}
	})
}

func FuzzDecodeRunning(f *testing.F) {
	f.Add(store.Encode(running{store.Now, proc.ID{PID: 7, Start: 9, Boot: "b", Namespace: 1}}))
	f.Add([]byte(`{"v":1,"pid":0,"start":1,"boot":"b","pid_namespace":2}`))
	f.Add([]byte(`{"v":1,"pid":1,"start":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRunning(data)
		if err != nil {
			isFileError(t, err, runningName)
			return
		}
		if r.PID <= 0 || r.Boot == "" || r.Namespace == 0 {
			t.Fatalf("%q is taken as %+v", data, r)
		}
		if back, err := decodeRunning(store.Encode(r)); err != nil || back != r {
			t.Errorf("%q is %+v, and that is %+v, %v", data, r, back, err)
		}
	})
}

func FuzzDecodeStop(f *testing.F) {
	f.Add("stop")
	f.Add("stop the run was canceled")
	f.Add("stopped")
	f.Add("\xff\n")
	f.Fuzz(func(t *testing.T, line string) {
		reason, ok := decodeStop(line)
		if ok != (line == "stop" || strings.HasPrefix(line, "stop ")) {
			t.Errorf("%q is an order: %t", line, ok)
		}
		order := encodeStop(line)
		back, ok := decodeStop(strings.TrimSuffix(string(order), "\n"))
		if !ok || back != clip(line) || bytes.Count(order, []byte("\n")) != 1 || len(order) > 4096 || len(reason) > maxText {
			t.Errorf("%q is sent as %q", line, order)
		}
	})
}

func isFileError(t *testing.T, err error, name string) {
	t.Helper()
	var f *FileError
	if !errors.As(err, &f) || f.Name != name {
		t.Errorf("the error is %v", err)
	}
}
