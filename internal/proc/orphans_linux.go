package proc

import (
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AdoptsOrphans reports whether the kernel makes orphans children of this process: it is
// process 1 of a container, or a subreaper. A process is a subreaper from its start, or never.
func AdoptsOrphans() bool {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	return os.Getpid() == 1 || err == nil && subreaper != 0
}

// ReapOrphans reaps the orphans that this process adopts, and never returns. The goroutine
// must be locked to the main thread, and no other thread may end before the children that it
// has started.
//
// The kernel makes orphans children of the main thread, and a child that this process starts
// one of the thread that starts it, which is another one. So reaping the children of the main
// thread alone takes none from the code that waits for it.
func ReapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for ; ; <-ended {
		for pid, err := 1, error(nil); err == nil && pid != 0; {
			err = Retry(func() (err error) { pid, err = unix.Wait4(-1, nil, unix.WNOHANG|unix.WNOTHREAD, nil); return err })
		}
	}
}
