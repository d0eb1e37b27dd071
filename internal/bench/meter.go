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

// usage is processor time: of etcd, 0 if its process is not known, of all instances, and of
// all other processes of the machine but this one.
type usage struct{ etcd, instances, others time.Duration }

func (u usage) minus(o usage) usage {
	return usage{etcd: u.etcd - o.etcd, instances: u.instances - o.instances, others: u.others - o.others}
}

// othersShare returns the share of so many processors that other processes used in a time.
func (u usage) othersShare(cpus int, during time.Duration) float64 {
	return max(0, u.others.Seconds()/during.Seconds()/float64(cpus))
}

// perClaim returns the milliseconds of each of n claims, in a time in which the same
// processes take so much without a claim per second.
func (u usage) perClaim(idle rate, during time.Duration, n int) (etcd, instances float64) {
	each := func(used time.Duration, idle float64) float64 {
		return max(0, Millis(used)-idle*during.Seconds()) / float64(n)
	}
	return each(u.etcd, idle.etcd), each(u.instances, idle.instances)
}

// rate is processor time in milliseconds per second.
type rate struct{ etcd, instances float64 }

// over returns the rate at which so much was used.
func (u usage) over(d time.Duration) rate {
	return rate{etcd: Millis(u.etcd) / d.Seconds(), instances: Millis(u.instances) / d.Seconds()}
}

// meter reads the processor time of processes. It is known on Linux only.
type meter struct {
	etcd      int // 0 if it is not known
	instances []int
}

func (m *meter) read() (u usage, err error) {
	if m.etcd != 0 {
		if u.etcd, err = processorTime(m.etcd); err != nil {
			return u, err
		}
	}
	for _, pid := range m.instances {
		used, err := processorTime(pid)
		if err != nil {
			return u, err
		}
		u.instances += used
	}
	all, err := machineTime()
	if err != nil {
		return u, err
	}
	u.others = all - u.etcd - u.instances
	if !slices.Contains(m.instances, os.Getpid()) {
		self, err := processorTime(os.Getpid())
		if err != nil {
			return u, err
		}
		u.others -= self
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
func (m *meter) during(ctx context.Context, base time.Time, w window) (usage, error) {
	if err := sleep(ctx, time.Until(base.Add(w.begin))); err != nil {
		return usage{}, err
	}
	begin, err := m.read()
	if err != nil {
		return usage{}, err
	}
	if err := sleep(ctx, time.Until(base.Add(w.end))); err != nil {
		return usage{}, err
	}
	end, err := m.read()
	return end.minus(begin), err
}
