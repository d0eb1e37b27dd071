//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) { embedtest.VerifyTestMain(m) }

// smoke makes a benchmark as short as it can be.
const smoke = " --duration 50ms --rounds 1"

// runBench carries out a command line, and returns what it prints. Its stderr is a file,
// since the processes that it starts write there too.
func runBench(t *testing.T, line string) (stdout, stderr string, code int) {
	t.Helper()
	diag, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	var out bytes.Buffer
	code = perform(t.Context(), append([]string{"bench"}, strings.Fields(line)...), &out, diag)
	text, err := os.ReadFile(diag.Name())
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), string(text), code
}

func TestEachSuiteMeasuresOnAnEtcdOfItsOwn(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the binary of berth")
	}
	t.Setenv("BERTH_ENDPOINTS", "127.0.0.1:1") // does not count
	berth := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.Command("go", "build", "-o", berth, "../../cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	tests := map[string]struct {
		fields []string
		target string // "" if none has a verdict
	}{
		"claims --cases ^uncontended/http/64c/1h/1p": {
			[]string{`"api": "http"`, `"claims_per_second": `, `"claim": {`, `"reference": {`}, "64 clients over HTTP, uncontended",
		},
		"hosts --hosts 2 --slots 4 --hold 2ms": {
			fields: []string{`"case": "full/go/8c/2h/1p"`, `"case": "free/go/8c/2h/1p"`, `"slot_time_used": {`, `"instances_cpu_ms_per_claim": {`, `"etcd_cpu_ms_per_claim": {`},
		},
		"hosts --processes --hosts 2 --clients-per-host 1 --slots 1 --hold 2ms --cases full": {fields: []string{`"case": "full/http/2c/2h/1p"`}},
		"queue --queued 20 --cases ^(submit/1c|admit|leader)": {
			[]string{`"case": "submit/1c"`, `"runs_per_second": `, `"heap_mb": `, `"queued": 20`}, "admission p50, below the limits",
		},
		"steps --steps 100 --cases ^mixed": {
			[]string{
				`"case": "mixed/4w/10r"`, `"concurrency": 10`, `"steps_per_second": `, `"slot_claims": `, `"slot_releases": `,
				`"etcd_transactions": `, `"puts": `,
			}, "1 of 100 limited",
		},
	}
	for line, test := range tests {
		t.Run(line, func(t *testing.T) {
			out, diag, code := runBench(t, line+smoke+" --embedded -o json --berth "+berth)
			var report struct {
				RoundSeconds *float64 `json:"round_seconds"`
				Rows         []struct{ Error string }
				Targets      []struct{ Target string }
			}
			if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 {
				t.Fatalf("exit code %d, %v: %s%s", code, err, out, diag)
			}
			for _, r := range report.Rows {
				if r.Error != "" {
					t.Errorf("a case failed: %s", r.Error)
				}
			}
			for _, field := range test.fields {
				if !strings.Contains(out, field) {
					t.Errorf("%s is missing", field)
				}
			}
			if test.target != "" && (len(report.Targets) != 1 || report.Targets[0].Target != test.target) {
				t.Errorf("verdicts: %+v", report.Targets)
			}
			if strings.HasPrefix(line, "steps") != (report.RoundSeconds == nil) {
				t.Error("rounds of all suites but steps have a length")
			}
			if !strings.Contains(diag, "bench: 1/") {
				t.Errorf("no progress: %s", diag)
			}
			if t.Failed() {
				t.Log(out, diag)
			}
		})
	}
}

func TestASuiteLeavesNothingBehind(t *testing.T) {
	srv := embedtest.New(t)
	t.Setenv("BERTH_ENDPOINTS", srv.Endpoint())
	out, diag, code := runBench(t, "steps --steps 100 --cases ^(baseline|unlimited)"+smoke)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, diag)
	}
	for _, want := range []string{
		"\nthe floor of claims ", "\nbaseline/4w/10r ", "\nunlimited/4w/10r without ", "\nTARGET ", "\ntasks without a limit where others have one ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	nothingIsLeft(t, srv)
}

func TestWhatCantBeMeasuredIsRefusedBeforeAnythingIsStarted(t *testing.T) {
	tests := map[string]struct {
		code int
		want string
	}{
		"queue --clients many":                     {2, `--clients can't be "many"`},
		"queue --queued 0":                         {2, "--queued can't be 0"},
		"queue --queued 2000000":                   {1, "queued: 2000000 is out of range: use 1 to 1000000"},
		"queue --cases ^uncontended":               {1, "no case has a name that matches"},
		"queue --hosts 4":                          {2, "hosts"},
		"steps --steps 0":                          {2, "--steps can't be 0"},
		"steps --workers 0":                        {1, "workers: 0 is out of range: use 1 to 256"},
		"steps --queues 5":                         {1, "queues: 5 is out of range: use 1 to 4"},
		"steps --steps 99":                         {1, "steps: 99 is out of range: use 100 to 100000"},
		"steps --cases ^submit":                    {1, "no case has a name that matches"},
		"steps --cases (":                          {2, `--cases can't be "("`},
		"steps --clients 4":                        {2, "clients"},
		"steps --duration 0s":                      {2, "--duration can't be 0"},
		"steps -o yaml":                            {2, `--output can't be "yaml"`},
		"steps more":                               {2, `unknown argument "more"`},
		"claims --rounds -1":                       {1, "rounds: -1 is out of range"},
		"hosts --hosts 4,many":                     {2, `--hosts can't be "4,many"`},
		"hosts --clients-per-host 0":               {2, "--clients-per-host can't be 0"},
		"hosts --hold 0s":                          {2, "--hold can't be 0"},
		"hosts --hold 1us":                         {1, "hold: 1µs is out of range"},
		"hosts --hosts 1001":                       {1, "hosts: 1001 is out of range: use 1 to 1000"},
		"hosts --hosts 1000 --clients-per-host 11": {1, "1,000 hosts with 11 clients each are too many"},
		"steps --embedded --berth /x":              {1, "/x"},
	}
	for line, test := range tests {
		t.Run(line, func(t *testing.T) {
			if _, diag, code := runBench(t, line); code != test.code || !strings.Contains(diag, test.want) {
				t.Errorf("exit code %d, want %d and %q: %s", code, test.code, test.want, diag)
			}
		})
	}
}
