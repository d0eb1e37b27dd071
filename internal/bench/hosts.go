package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// free is the kind of load with slots for all, and a hold; [full] is the other kind of
// hosts.
const free = "free"

// Defaults of [Config] for the cases of hosts.
const (
	DefaultClientsPerHost = 4
	DefaultSlots          = 20
	DefaultHold           = 50 * time.Millisecond
	hostsDuration         = 8 * time.Second
	hostsRounds           = 3
)

// fleetSizes are the numbers of hosts, quickFleetSizes those of a quick measurement.
var (
	fleetSizes      = []int{4, 10, 20, 50, 100, 200}
	quickFleetSizes = []int{4, 20}
)

const (
	// oneSlotPool is the pool whose only slot passes between two hosts.
	oneSlotPool = "bench-transfer"
	// oneSlotShare is the part of a load's time for which that is measured.
	oneSlotShare = 4
	// emptyPoll is how often it is checked whether a pool is empty.
	emptyPoll = 20 * time.Millisecond
	// busyMachine is the share of the processors above which what others use is reported
	// to people.
	busyMachine = 0.05
)

// HostsRow holds the results for one number of hosts, all of which claim slots of one pool. Figures
// that do not apply are nil.
type HostsRow struct {
	Row
	HoldMS float64 `json:"hold_ms"`
	// Ideal is the number of claims per second if claims took no time.
	Ideal float64 `json:"ideal_claims_per_second"`
	// FairWait is how long each claim would wait, at the measured throughput, if all
	// waited equally. LongestWait is the longest wait, including claims that still waited at the
	// end. LongestToFair is LongestWait as a multiple of FairWait; it is missing if the load was
	// shorter than FairWait.
	FairWait      float64 `json:"fair_wait_ms,omitempty"`
	LongestWait   float64 `json:"longest_wait_ms,omitempty"`
	LongestToFair *Spread `json:"longest_wait_to_fair,omitempty"`
	// EtcdCPU and InstancesCPU are the CPU time of etcd and of all instances for a claim and its
	// release, without the CPU time that they use when idle. For instances in one process, it
	// includes the clients.
	EtcdCPU      *Spread `json:"etcd_cpu_ms_per_claim,omitempty"`
	InstancesCPU *Spread `json:"instances_cpu_ms_per_claim,omitempty"`
	// IdleEtcdCPU and IdleInstanceCPU are the CPU time that etcd and each instance use when idle.
	IdleEtcdCPU     *float64 `json:"idle_etcd_cpu_ms_per_second,omitempty"`
	IdleInstanceCPU *float64 `json:"idle_instance_cpu_ms_per_second,omitempty"`
	// InstanceMemory is the memory of an idle instance: heap and stacks in this process, or the
	// resident memory of its process.
	InstanceMemory *float64 `json:"memory_per_instance_mb,omitempty"`
	// OthersCPU is the share of the machine's processors that other processes used during
	// the loads. The higher it is, the less the throughput and the waits mean.
	OthersCPU *Spread `json:"others_cpu_share,omitempty"`
	// Conflicts is how many grants were refused, for each that was made, since another
	// instance was faster.
	Conflicts *Spread `json:"conflicts_per_claim,omitempty"`
	// HostShares are the smallest and the largest number of claims of a host, as a multiple
	// of the mean.
	HostShares *Shares `json:"host_shares,omitempty"`
	// OneSlot is the time from the call of a release on one of two hosts to the grant on
	// the other, where these are the only clients. OneSlotToPut is its p50 as a multiple of
	// that of the reference's puts.
	OneSlot      *Latency `json:"one_slot_transfer,omitempty"`
	OneSlotToPut *Spread  `json:"one_slot_transfer_p50_to_put_p50,omitempty"`
}

// Shares compares parts of a whole.
type Shares struct {
	Smallest float64 `json:"smallest_to_mean"`
	Largest  float64 `json:"largest_to_mean"`
}

// HostRows returns a row without figures for each case of hosts that the configuration
// selects. It is an error if there are none.
func (c *Config) HostRows() ([]*HostsRow, error) {
	if err := c.Fill(); err != nil {
		return nil, err
	}
	var rows []*HostsRow
	for _, kind := range []string{full, free} {
		for _, hosts := range c.Hosts {
			if hosts*c.ClientsPerHost > maxClients {
				return nil, problem.Field("hosts", "%s with %s each are too many: at most %s in all",
					text.Count(hosts, "host"), text.Count(c.ClientsPerHost, "client"), text.Count(maxClients, "client"))
			}
			if cs := c.hostsCase(kind, hosts); c.Selects(cs.Name) {
				rows = append(rows, &HostsRow{Row: Row{Case: cs}, HoldMS: Millis(cs.Hold), Ideal: cs.ideal()})
			}
		}
	}
	if len(rows) == 0 {
		return nil, ErrNoCase
	}
	return rows, nil
}

func (c *Config) hostsCase(kind string, hosts int) Case {
	clients, api, limit := hosts*c.ClientsPerHost, GoAPI, c.Slots
	if c.Processes {
		api = HTTPAPI
	}
	if kind == free {
		limit = max(ampleLimit, clients)
	}
	cs := newCase(kind, api, clients, hosts, 1, limit)
	cs.Hold = c.Hold
	return cs
}

// ideal returns the claims per second if they cost nothing.
func (c Case) ideal() float64 { return float64(min(c.Clients, c.Limit)) / c.Hold.Seconds() }

// hostsRound is a round of a case of hosts.
type hostsRound struct {
	put, oneSlot, own Outcome
	// granted and conflicts are counted by the instances, from the begin of the load to its
	// end.
	granted, conflicts float64
}

// MeasureHosts measures a case of hosts.
func (r *Runner) MeasureHosts(ctx context.Context, row *HostsRow) (err error) {
	pools := row.pools()
	if err := errors.Join(r.SetPools(ctx, pools, row.Limit), r.SetPools(ctx, []string{oneSlotPool}, 1)); err != nil {
		return err
	}
	own := Load{Clients: row.Clients, Hold: row.Hold, Duration: r.Duration, slots: row.slots(), cut: true}
	hosts, err := Labeled(ctx, "case", func(ctx context.Context) (fleet, error) { return r.openFleet(ctx, row.Case) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hosts.Close()) }()
	own.Driver, own.meter = hosts, r.Meter(hosts.pids()...)
	idle, err := r.MeasureIdle(ctx, own.meter)
	if err != nil {
		return err
	}
	memory, err := hosts.memory()
	if err != nil {
		return err
	}
	var oneSlot *Load
	like := Load{Hold: transferHold, Duration: max(minDuration, r.Duration/oneSlotShare)}
	if row.Kind == full && row.Hosts > 1 {
		oneSlot = &Load{Clients: 2, Hold: like.Hold, Duration: like.Duration, slots: 1, cut: true}
		oneSlot.Driver = hosts.borrow(2, instance.Slots{oneSlotPool: 1})
	}
	floor, err := r.SlowFloor(like)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, floor.Driver.Close()) }()
	var rounds []hostsRound
	for range r.Rounds {
		round, err := r.hostsRound(ctx, own, floor, oneSlot, pools[0])
		if err != nil {
			return err
		}
		rounds = append(rounds, round)
	}
	row.fillHosts(rounds, idle, memory, own)
	return nil
}

// openFleet opens the hosts of a case.
func (r *Runner) openFleet(ctx context.Context, c Case) (fleet, error) {
	if c.API == HTTPAPI {
		d, err := r.openSidecars(ctx, c.Hosts, c.claim())
		if err != nil {
			return nil, err // and no driver, not even a nil one
		}
		return d, nil
	}
	d, err := r.openInstances(ctx, c.Hosts, c.claim())
	if err != nil {
		return nil, err
	}
	return d, nil
}

// MeasureIdle returns the CPU time of idle processes, measured a moment after their start.
func (r *Runner) MeasureIdle(ctx context.Context, m *Meter) (Rate, error) {
	d := min(r.Duration, r.idle)
	w := window{begin: d / 2, end: d + d/2} // what was just opened is busy at first
	used, err := m.during(ctx, time.Now(), w)
	return used.over(w.length()), err
}

// hostsRound measures plain writes, then the slot that passes between two hosts, and then
// the load.
func (r *Runner) hostsRound(ctx context.Context, own, floor Load, oneSlot *Load, pool string) (o hostsRound, err error) {
	if o.put, err = Labeled(ctx, "reference", floor.Round); err != nil {
		return o, fmt.Errorf("floor: %w", err)
	}
	if oneSlot != nil {
		if o.oneSlot, err = Labeled(ctx, "case", oneSlot.Round); err != nil {
			return o, fmt.Errorf("transfer of one slot: %w", err)
		}
		if err := r.awaitEmpty(ctx, oneSlotPool); err != nil {
			return o, err
		}
	}
	granted, conflicts, err := countClaims(ctx, own.Driver.(fleet))
	if err != nil {
		return o, err
	}
	if o.own, err = Labeled(ctx, "case", own.Round); err != nil {
		return o, err
	}
	if o.granted, o.conflicts, err = countClaims(ctx, own.Driver.(fleet)); err != nil {
		return o, err
	}
	o.granted, o.conflicts = o.granted-granted, o.conflicts-conflicts
	return o, r.awaitEmpty(ctx, pool)
}

// countClaims returns the grants and conflicts that the instances have counted.
func countClaims(ctx context.Context, f fleet) (granted, conflicts float64, err error) {
	if granted, err = f.count(ctx, "berth_claims_granted_total"); err != nil {
		return 0, 0, err
	}
	conflicts, err = f.count(ctx, "berth_claim_conflicts_total")
	return granted, conflicts, err
}

// awaitEmpty waits until a pool has neither claims nor waiters: those that a load has cut
// are removed after it.
func (r *Runner) awaitEmpty(ctx context.Context, pool string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("pool %s still has claims or waiters after the load", pool))
	defer cancel()
	k := store.NewKeys(r.Prefix)
	for {
		n, err := r.countKeys(ctx, k.Slots(pool), k.DemandsAll(pool))
		if err != nil || n == 0 {
			return err
		}
		if err := sleep(ctx, emptyPoll); err != nil {
			return err
		}
	}
}

func (r *Runner) countKeys(ctx context.Context, prefixes ...string) (n int64, err error) {
	for _, p := range prefixes {
		resp, err := r.plain.Get(ctx, p, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, fmt.Errorf("count the keys below %s: %w", p, err)
		}
		n += resp.Count
	}
	return n, nil
}

// fillHosts computes the figures of a row from its rounds.
func (r *HostsRow) fillHosts(rounds []hostsRound, idle Rate, memory float64, load Load) {
	var all, one Rounds
	var fair, longestToFair, conflicts, etcd, instances, others []float64
	grants := make([]int, r.Clients)
	w := load.window()
	for _, each := range rounds {
		all.Reference, all.Own = append(all.Reference, each.put), append(all.Own, each.own)
		one.Reference, one.Own = append(one.Reference, each.put), append(one.Own, each.oneSlot)
		e, i := each.own.cpu.Each(idle, w.length(), len(each.own.Claim))
		etcd, instances = append(etcd, e), append(instances, i)
		others = append(others, each.own.cpu.OthersShare(runtime.NumCPU(), w.length()))
		conflicts = append(conflicts, each.conflicts/max(1, each.granted))
		for client, n := range each.own.grants {
			grants[client] += n
		}
		longest := each.own.longest()
		r.LongestWait = max(r.LongestWait, Millis(longest))
		f := fairWait(r.Clients, each.own)
		fair = append(fair, Millis(f))
		if f > 0 && f < w.end {
			longestToFair = append(longestToFair, float64(longest)/float64(f))
		}
	}
	own := Combine(all.Own)
	r.Reference = ReferenceOf("floor/1c/1h", all.Reference)
	r.PerSecond = own.PerSecond
	r.Claim, r.Release, r.Held = Summarize(own.Claim), Summarize(own.Release), Summarize(own.held)
	if r.Kind == full {
		r.Used, r.FairWait = all.used(r.Limit), Median(fair)
		if r.Hosts > 1 {
			r.OneSlot, r.OneSlotToPut = Summarize(Combine(one.Own).transfer), one.transferToPut()
		}
	} else {
		r.ClaimToPut = all.ClaimToPut()
	}
	if r.slots() > 0 {
		r.Transfer, r.TransferToPut = Summarize(own.transfer), all.transferToPut()
		if len(longestToFair) == len(rounds) {
			r.LongestToFair = SpreadOf(longestToFair)
		}
	}
	if load.meter.KnowsEtcd() {
		r.EtcdCPU, r.IdleEtcdCPU = SpreadOf(etcd), &idle.Etcd
	}
	perHost := func(sum float64) *float64 { sum /= float64(r.Hosts); return &sum }
	r.InstancesCPU, r.IdleInstanceCPU, r.InstanceMemory = SpreadOf(instances), perHost(idle.Instances), perHost(memory)
	r.Conflicts, r.HostShares, r.OthersCPU = SpreadOf(conflicts), sharesOf(byHost(grants, r.Hosts)), SpreadOf(others)
}

// longest returns the longest wait, also of the claims that were cut.
func (o Outcome) longest() time.Duration {
	return slices.Max(slices.Concat(o.Claim, o.waiting, []time.Duration{0}))
}

// fairWait returns how long each claim of a load would wait if all waited equally. Each
// client then claims once in the time in which all claim once, and waits for what remains
// of that time after its hold and release.
func fairWait(clients int, o Outcome) time.Duration {
	turn := time.Duration(float64(clients) / o.PerSecond * float64(time.Second))
	return max(0, turn-mean(o.held)-mean(o.Release))
}

// mean returns the mean of samples, 0 of none.
func mean(samples []time.Duration) time.Duration {
	var sum time.Duration
	for _, s := range samples {
		sum += s
	}
	return sum / time.Duration(max(1, len(samples)))
}

// byHost sums up the claims of clients, which are spread over the hosts in turn.
func byHost(grants []int, hosts int) []int {
	sums := make([]int, hosts)
	for client, n := range grants {
		sums[client%hosts] += n
	}
	return sums
}

// sharesOf compares the smallest and largest of parts with their mean; nil if all are 0.
func sharesOf(parts []int) *Shares {
	sum := 0
	for _, n := range parts {
		sum += n
	}
	if sum == 0 {
		return nil
	}
	mean := float64(sum) / float64(len(parts))
	return &Shares{Smallest: float64(slices.Min(parts)) / mean, Largest: float64(slices.Max(parts)) / mean}
}

// Summary returns the figures in a few words.
func (r *HostsRow) Summary() []string {
	words := []string{fmt.Sprintf("%.0f/s", r.PerSecond)}
	if r.Used != nil {
		words = append(words, fmt.Sprintf("%.1f%% of slot time used", 100*r.Used.Median))
	}
	if r.EtcdCPU != nil {
		words = append(words, fmt.Sprintf("%.2f ms of etcd's CPU per claim", r.EtcdCPU.Median))
	}
	return append(words, fmt.Sprintf("%.2f ms of the instances'", r.InstancesCPU.Median))
}

// WriteHosts writes a report of hosts for people.
func WriteHosts(w io.Writer, r *Report[*HostsRow]) {
	r.WriteHead(w)
	var cells [][]string
	others := 0.0
	for _, row := range r.Rows {
		if row.Claim != nil {
			cells = append(cells, row.cells())
		}
		if row.OthersCPU != nil {
			others = max(others, row.OthersCPU.Median)
		}
	}
	if len(cells) == 0 {
		fmt.Fprintln(w, "no case was measured")
	} else {
		Columns(w, []string{
			"CASE", "CLAIMS/S", "IDEAL/S", "USED", "WAIT MS", "LONGEST/FAIR", "ETCD CPU MS", "INSTANCES CPU MS",
			"TRANSFER/PUT", "SHARES", "CONFLICTS", "MB",
		}, cells)
		fmt.Fprintln(w, strings.Join([]string{
			"USED is the share of the slots' time; WAIT is p50/p99/longest. CPU is that of etcd, and of all instances,",
			"per claim, without what they take while idle. TRANSFER/PUT is the time from a release to the next grant over",
			"that of a plain put: under this load, and of one slot between two hosts. SHARES are the fewest and most",
			"claims of a host over the mean. CONFLICTS are per claim, and MB per instance.",
		}, "\n"))
	}
	if others > busyMachine {
		fmt.Fprintf(w, "Other processes used up to %.0f%% of the processors during the loads: repeat this on a quiet machine.\n", 100*others)
	}
	r.WriteFailures(w)
}

func (r *HostsRow) cells() []string {
	number := func(format string, s *Spread, factor float64) string {
		if s == nil {
			return ""
		}
		return fmt.Sprintf(format, s.Median*factor)
	}
	cells := []string{
		r.Name, fmt.Sprintf("%.0f", r.PerSecond), fmt.Sprintf("%.0f", r.Ideal), number("%.1f%%", r.Used, 100),
		strings.Join([]string{compact(r.Claim.P50), compact(r.Claim.P99), compact(r.LongestWait)}, "/"),
		number("%.2f", r.LongestToFair, 1), number("%.2f", r.EtcdCPU, 1), number("%.2f", r.InstancesCPU, 1),
	}
	transfer := ""
	if r.OneSlotToPut != nil || r.TransferToPut != nil {
		transfer = dash(number("%.1f", r.TransferToPut, 1)) + ", " + dash(number("%.1f", r.OneSlotToPut, 1))
	}
	return append(cells, transfer,
		fmt.Sprintf("%.2f-%.2f", r.HostShares.Smallest, r.HostShares.Largest),
		number("%.2f", r.Conflicts, 1), fmt.Sprintf("%.1f", *r.InstanceMemory))
}

func dash(cell string) string {
	if cell == "" {
		return "-"
	}
	return cell
}

// compact returns milliseconds with three digits, or all of them if there are more.
func compact(ms float64) string {
	if ms >= 100 {
		return fmt.Sprintf("%.0f", ms)
	}
	return fmt.Sprintf("%.3g", ms)
}
