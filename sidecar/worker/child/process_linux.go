package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// processes reads the stats of all processes that can be seen.
func processes() ([]stat, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := statOf(pid); err == nil { // else it is gone
			all = append(all, s)
		}
	}
	return all, nil
}

func statOf(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	s, err := parseStat(text)
	s.start = lease.BootTicks(s.start)
	return s, err
}

// self is what running.json says of this process.
func self() (running, error) {
	s, err := statOf(os.Getpid())
	if err != nil {
		return running{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return running{}, err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return running{}, err
	}
	return running{V: store.Now, PID: s.pid, Start: s.start, Boot: string(bytes.TrimSpace(boot)), Namespace: namespace}, nil
}

// killProcess kills the very process that was seen. It is false if that was not to
// be done: the process is gone, or another user's.
func killProcess(s stat) bool {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	if now, err := statOf(s.pid); err != nil || now.start != s.start || now.ended() {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
