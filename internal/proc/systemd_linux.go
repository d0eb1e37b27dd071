package proc

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// What a service notifies systemd of: see sd_notify(3).
const (
	// Ready is that the service serves.
	Ready = "READY=1"
	// Stopping is that the service has begun to stop.
	Stopping = "STOPPING=1"
)

// Notify sends a state of this service to systemd. It does nothing in a process that
// systemd has not started as a service with Type=notify.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A path that begins with @ is in the abstract namespace, which package net knows.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("systemd can't be notified: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("systemd can't be notified: %w", err)
	}
	return nil
}

// ServesAll reports whether this process can stop processes of all users: it is root's, or
// has CAP_KILL, as the packaged sidecar.
func ServesAll() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	return os.Geteuid() == 0 || err == nil && sets[0].Effective&(1<<unix.CAP_KILL) != 0
}

// IsJournal reports whether a file is the stream to the journal that systemd has given to
// this process. The journal keeps the time of each line itself.
func IsJournal(file *os.File) bool {
	journal := os.Getenv("JOURNAL_STREAM")
	if journal == "" {
		return false
	}
	var s unix.Stat_t
	err := unix.Fstat(int(file.Fd()), &s)
	return err == nil && journal == fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}
