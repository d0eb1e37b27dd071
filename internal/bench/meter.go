package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/proc"
)

// Usage is the CPU time of etcd (0 if its process is unknown), of all instances, and of all other
// processes of the machine except this one.
type Usage struct{ Etcd, Instances, Others time.Duration }

// Minus returns what was used since an earlier reading.
func (u Usage) Minus(o Usage) Usage {
	return Usage{Etcd: u.Etcd - o.Etcd, Instances: u.Instances - o.Instances, Others: u.Others - o.Others}
}

// OthersShare returns the share of so many processors that other processes used in a time.
func (u Usage) OthersShare(cpus int, during time.Duration) float64 {
	return max(0, u.Others.Seconds()/during.Seconds()/float64(cpus))
}

// Each returns the CPU time in milliseconds for each of n claims or steps, without the CPU time
// that the same processes use when idle.
func (u Usage) Each(idle Rate, during time.Duration, n int) (etcd, instances float64) {
	each := func(used time.Duration, idle float64) float64 {
		return max(0, Millis(used)-idle*during.Seconds()) / float64(n)
	}
	return each(u.Etcd, idle.Etcd), each(u.Instances, idle.Instances)
}

// Rate is processor time in milliseconds per second.
type Rate struct{ Etcd, Instances float64 }

// over returns the rate at which so much was used.
func (u Usage) over(d time.Duration) Rate {
	return Rate{Etcd: Millis(u.Etcd) / d.Seconds(), Instances: Millis(u.Instances) / d.Seconds()}
}

// Meter reads the processor time of processes. It is known on Linux only.
type Meter struct {
	etcd      int // 0 if it is not known
	instances []int
}

// Meter returns a meter of etcd and of instances, which have the processes pids.
func (r *Runner) Meter(pids ...int) *Meter { return &Meter{etcd: r.etcd, instances: pids} }

// KnowsEtcd reports whether the process of etcd is known: it was started for the benchmark.
func (m *Meter) KnowsEtcd() bool { return m.etcd != 0 }

// Read returns what was used so far.
func (m *Meter) Read() (u Usage, err error) {
	if m.KnowsEtcd() {
		if u.Etcd, err = processorTime(m.etcd); err != nil {
			return u, err
		}
	}
	for _, pid := range m.instances {
		used, err := processorTime(pid)
		if err != nil {
			return u, err
		}
		u.Instances += used
	}
	all, err := machineTime()
	if err != nil {
		return u, err
	}
	u.Others = all - u.Etcd - u.Instances
	if !slices.Contains(m.instances, os.Getpid()) {
		self, err := processorTime(os.Getpid())
		if err != nil {
			return u, err
		}
		u.Others -= self
	}
	return u, nil
}

// machineTime returns the processor time of all processes of the machine.
func machineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("processor time of the machine: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return parseMachineTime(first)
}

// parseMachineTime reads cpu user nice system idle iowait irq softirq …, in clock ticks.
func parseMachineTime(line string) (time.Duration, error) {
	const idle, iowait, softirq = 4, 5, 7
	fields := strings.Fields(line)
	if len(fields) <= softirq || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var sum time.Duration
	for i, f := range fields[:softirq+1] {
		if i == 0 || i == idle || i == iowait {
			continue
		}
		ticks, err := strconv.Atoi(f)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q", line)
		}
		sum += time.Duration(ticks) * proc.ClockTick
	}
	return sum, nil
}

func processorTime(pid int) (time.Duration, error) {
	s, err := proc.Read(pid)
	if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return s.CPU, nil
}

// during returns what is used in the window of a load that began at base.
func (m *Meter) during(ctx context.Context, base time.Time, w window) (Usage, error) {
	if err := sleep(ctx, time.Until(base.Add(w.begin))); err != nil {
		return Usage{}, err
	}
	begin, err := m.Read()
	if err != nil {
		return Usage{}, err
	}
	if err := sleep(ctx, time.Until(base.Add(w.end))); err != nil {
		return Usage{}, err
	}
	end, err := m.Read()
	return end.Minus(begin), err
}
