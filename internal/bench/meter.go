package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/proc"
)

// usage is processor time: of etcd, 0 if its process is not known, and of all instances.
type usage struct{ etcd, instances time.Duration }

func (u usage) minus(o usage) usage {
	return usage{etcd: u.etcd - o.etcd, instances: u.instances - o.instances}
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
	return u, nil
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
