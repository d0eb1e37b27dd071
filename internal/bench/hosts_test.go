package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestHostsHaveAFullPoolAndAFreeOne(t *testing.T) {
	c := Config{Hosts: []int{4, 300}}
	rows, err := c.HostRows()
	if err != nil {
		t.Fatal(err)
	}
	type want struct {
		name  string
		limit int
		ideal float64
	}
	var got []want
	for _, row := range rows {
		got = append(got, want{row.Name, row.Limit, row.Ideal})
	}
	if diff := cmp.Diff([]want{
		{"full/go/16c/4h/1p", 20, 320},
		{"full/go/1200c/300h/1p", 20, 400},
		{"free/go/16c/4h/1p", 1000, 320},
		{"free/go/1200c/300h/1p", 1200, 24000},
	}, got, cmp.AllowUnexported(want{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestHostsThatCantBeMeasuredAreRefused(t *testing.T) {
	for field, c := range map[string]Config{
		"hosts": {Hosts: []int{1000}, ClientsPerHost: 11},
		"hold":  {Hold: -time.Second},
		"cases": {Cases: regexp.MustCompile("nothing")},
	} {
		_, err := c.HostRows()
		var p *problem.Error
		if !errors.As(err, &p) || p.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestIdleCostIsSubtracted(t *testing.T) {
	idle := Usage{Etcd: ms(50), Instances: ms(200)}.over(5 * time.Second) // 10 and 40 ms/s
	etcd, instances := Usage{Etcd: ms(120), Instances: ms(60)}.Each(idle, 2*time.Second, 50)
	if etcd != 2 || instances != 0 {
		t.Errorf("%v ms of etcd and %v ms of the instances, want 2 and 0", etcd, instances)
	}
}

func TestWhatOthersUseIsTheRestOfTheMachine(t *testing.T) {
	got, err := parseMachineTime("cpu  100 20 30 4000 500 6 7 80 0 0")
	if want := 1630 * time.Millisecond; err != nil || got != want {
		t.Errorf("the machine was busy for %s, want %s: %v", got, want, err)
	}
	for _, line := range []string{"", "cpu0 1 2 3 4 5 6 7", "cpu 1 2 3", "cpu a 2 3 4 5 6 7"} {
		if _, err := parseMachineTime(line); err == nil {
			t.Errorf("%q is read", line)
		}
	}
	if got := (Usage{Others: ms(500)}).OthersShare(2, time.Second); got != 0.25 {
		t.Errorf("the share is %v", got)
	}
}

func TestTheFairWaitIsThatOfTakingTurns(t *testing.T) {
	o := Outcome{
		PerSecond: 100, held: []time.Duration{ms(40), ms(60)}, Release: []time.Duration{ms(2)},
		Claim: []time.Duration{ms(900), ms(1100)}, waiting: []time.Duration{ms(1500), ms(3)},
	}
	for clients, want := range map[int]time.Duration{200: ms(2000 - 50 - 2), 5: 0} {
		if got := fairWait(clients, o); got != want {
			t.Errorf("%d clients: %s, want %s", clients, got, want)
		}
	}
	if got := o.longest(); got != ms(1500) {
		t.Errorf("the longest wait is %s", got)
	}
}

func TestSharesOfHostsAreComparedWithTheMean(t *testing.T) {
	got := sharesOf(byHost([]int{10, 3, 2, 1, 0, 0, 5}, 3)) // 16, 3, 2
	if diff := cmp.Diff(&Shares{Smallest: 2.0 / 7, Largest: 16.0 / 7}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := sharesOf([]int{0, 0}); got != nil {
		t.Errorf("no host has claimed: %+v", got)
	}
}

func TestACounterIsReadFromMetrics(t *testing.T) {
	const metrics = "# TYPE berth_x_total counter\nberth_x_total_more 7\nberth_x_total 1.25e+02\n"
	if got := counter(metrics, "berth_x_total"); got != 125 {
		t.Errorf("it is %v", got)
	}
	if got := counter(metrics, "berth_y_total"); got != 0 {
		t.Errorf("what is not there is %v", got)
	}
}

// oneServed is a driver that grants at once, but to the first client only.
type oneServed struct{ fleet }

func (oneServed) claimUntil(ctx context.Context, client int, until time.Time) (Held, error) {
	if client == 0 {
		return releasedAtOnce{}, nil
	}
	return nil, errors.Join(errCut, sleep(ctx, time.Until(until)))
}

type releasedAtOnce struct{}

func (releasedAtOnce) Release(context.Context) error { return nil }

func TestClaimsThatWaitAtTheEndAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Load{Driver: oneServed{}, Clients: 2, Hold: ms(5), Duration: ms(40), slots: 1, cut: true}
		o, err := l.Round(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]time.Duration{ms(50)}, o.waiting); diff != "" {
			t.Errorf("waits -want +got:\n%s", diff)
		}
		if diff := cmp.Diff([]int{8, 0}, o.grants); diff != "" {
			t.Errorf("grants -want +got:\n%s", diff)
		}
		if o.inUse != 1 || len(o.transfer) != 8 {
			t.Errorf("%v slots in use, transfers %v", o.inUse, o.transfer)
		}
	})
}

// interruptedHold is a driver whose load is interrupted while a claim is held.
type interruptedHold struct {
	interrupt context.CancelCauseFunc
	released  bool
}

func (d *interruptedHold) Claim(context.Context, int) (Held, error) {
	time.AfterFunc(time.Second, func() { d.interrupt(errInterrupted) })
	return d, nil
}

func (d *interruptedHold) Release(ctx context.Context) error {
	d.released = ctx.Err() == nil
	return ctx.Err()
}

func (*interruptedHold) Close() error { return nil }

var errInterrupted = errors.New("interrupted")

func TestAnInterruptedLoadReleasesWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		d := &interruptedHold{interrupt: cancel}
		begun := time.Now()
		_, err := Load{Driver: d, Clients: 1, Hold: time.Minute, Duration: time.Minute}.Round(ctx)
		if took := time.Since(begun); !errors.Is(err, errInterrupted) || took != time.Second || !d.released {
			t.Errorf("%v after %s, released %t", err, took, d.released)
		}
	})
}

func TestTwoHostsAreMeasured(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the processor time of processes is known on Linux only")
	}
	srv := embedtest.New(t)
	for name, processes := range map[string]bool{"instances": false, "sidecars": true} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{
				Etcd:     instance.Options{Endpoints: []string{srv.Endpoint()}},
				Duration: 80 * time.Millisecond, Rounds: 2, Hosts: []int{2}, ClientsPerHost: 2, Slots: 2, Hold: 2 * time.Millisecond,
				Processes: processes, Sidecars: fakeSidecars{t}, idle: 10 * time.Millisecond, etcd: os.Getpid(),
			}
			rows, err := cfg.HostRows()
			if err != nil {
				t.Fatal(err)
			}
			r, err := NewRunner(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			report, err := Measure(t.Context(), r, rows, r.MeasureHosts)
			if err = errors.Join(err, r.Close()); err != nil {
				t.Fatal(err)
			}
			if len(report.Rows) != 2 {
				t.Fatalf("%d rows", len(report.Rows))
			}
			for _, row := range report.Rows {
				checkHostsRow(t, row)
			}
			if _, err := json.Marshal(report); err != nil {
				t.Errorf("the report is no JSON: %v", err)
			}
			nothingIsLeft(t, srv)
		})
	}
}

// checkHostsRow checks what is so however fast the machine is.
func checkHostsRow(t *testing.T, r *HostsRow) {
	t.Helper()
	if r.Error != "" {
		t.Errorf("%s: %s", r.Name, r.Error)
		return
	}
	if r.PerSecond <= 0 || r.Claim.P50 > r.Claim.P99 || r.Claim.P99 > r.LongestWait {
		t.Errorf("%s: %v claims/s, waits %v, the longest %v ms", r.Name, r.PerSecond, r.Claim, r.LongestWait)
	}
	isFull := r.Kind == full
	if has := r.Used != nil && r.Transfer != nil && r.OneSlot != nil && r.TransferToPut != nil && r.OneSlotToPut != nil; has != isFull {
		t.Errorf("%s: used %v, transfers %v and %v", r.Name, r.Used, r.Transfer, r.OneSlot)
	}
	if isFull && (r.Used.Low <= 0 || r.Used.High > 1) {
		t.Errorf("%s: used %+v", r.Name, r.Used)
	}
	if r.EtcdCPU.Low < 0 || r.InstancesCPU.Low < 0 || *r.IdleEtcdCPU < 0 || *r.IdleInstanceCPU < 0 || r.OthersCPU.Low < 0 || r.Conflicts.Low < 0 || *r.InstanceMemory < 0 {
		t.Errorf("%s has a negative figure: %+v", r.Name, r)
	}
	if r.HostShares.Smallest > 1 || r.HostShares.Largest < 1 {
		t.Errorf("%s: %+v", r.Name, r.HostShares)
	}
}

func TestAReportOfHostsIsReadable(t *testing.T) {
	one := func(v float64) *Spread { return &Spread{Median: v, Low: v, High: v} }
	memory := 0.42
	figures := HostsRow{
		Ideal: 400, LongestWait: 1290, InstancesCPU: one(8.4), InstanceMemory: &memory, Conflicts: one(0.5), HostShares: &Shares{Smallest: 0.9, Largest: 1.1},
	}
	full, free, failed := figures, figures, HostsRow{Row: Row{Case: Case{Name: "full/go/40c/10h/1p"}, Error: "etcd went away"}}
	full.Row = Row{
		Case: Case{Name: "full/go/200c/50h/1p"}, PerSecond: 160, Claim: &Latency{P50: 1073, P99: 1200.4}, Used: one(0.4), TransferToPut: one(12.34),
	}
	full.OthersCPU = one(0.3)
	full.LongestToFair, full.EtcdCPU, full.OneSlotToPut = one(1.2), one(3.7), one(4)
	free.Row = Row{Case: Case{Name: "free/go/200c/50h/1p"}, PerSecond: 155, Claim: &Latency{P50: 2.345, P99: 17}}
	report := &Report[*HostsRow]{
		Etcd: "3.7.3", Endpoints: []string{"127.0.0.1:2379"}, Go: "go1.26", CPUs: 2, Rounds: 3, RoundSeconds: 8, Rows: []*HostsRow{&full, &free, &failed},
	}
	var out bytes.Buffer
	WriteHosts(&out, report)
	want := strings.Join([]string{
		"etcd 3.7.3 at 127.0.0.1:2379, go1.26, 2 CPUs, 3 rounds of 8s",
		"",
		"CASE                 CLAIMS/S  IDEAL/S  USED   WAIT MS         LONGEST/FAIR  ETCD CPU MS  INSTANCES CPU MS  TRANSFER/PUT  SHARES     CONFLICTS  MB",
		"full/go/200c/50h/1p  160       400      40.0%  1073/1200/1290  1.20          3.70         8.40              12.3, 4.0     0.90-1.10  0.50       0.4",
		"free/go/200c/50h/1p  155       400      -      2.35/17/1290    -             -            8.40              -             0.90-1.10  0.50       0.4",
	}, "\n")
	if head, _, _ := strings.Cut(out.String(), "\nUSED is"); head != want {
		t.Errorf("-want +got:\n%s", cmp.Diff(want, head))
	}
	if last := "Other processes used up to 30% of the processors during the loads: repeat this on a quiet machine.\nfull/go/40c/10h/1p failed: etcd went away\n"; !strings.HasSuffix(out.String(), last) {
		t.Errorf("the report does not end with %q:\n%s", last, out.String())
	}
}
