package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

// adopterVar names the process that adopts the orphans of those that it starts.
const adopterVar = "ADOPTER"

// jobAdopts COMMAND… becomes a command that gets the orphans of the processes that it starts, as
// process 1 of a container does.
func jobAdopts(a []string) error {
	path, err := exec.LookPath(a[0])
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec(path, a, append(os.Environ(), fmt.Sprint(adopterVar, "=", os.Getpid())))
}

// jobOrphans N makes N orphans, and waits until they have been reaped by the process that has adopted
// them.
func jobOrphans(a []string) error {
	n, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	adopter, err := strconv.Atoi(os.Getenv(adopterVar))
	if err != nil {
		return err
	}
	for range n {
		if err := orphan(adopter); err != nil {
			return err
		}
	}
	return nil
}

func orphan(adopter int) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	defer write.Close()
	parent := exec.Command("sh", "-c", "read line <&3 >&3 & echo $!")
	parent.ExtraFiles = []*os.File{read}
	out, err := parent.StdoutPipe()
	if err != nil {
		return err
	}
	if err := parent.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return err
	}
	if err := parent.Wait(); err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	if s, err := proc.Read(pid); err != nil || s.Parent != adopter {
		return fmt.Errorf("the parent of the orphan is %d, not %d: %v", s.Parent, adopter, err)
	}
	write.Close() // it ends
	return waitUntil("the orphan was not reaped", func() bool { return !exists(fmt.Sprint("/proc/", pid)) })
}
