// Command job is a job of the test of the compose file: "job FOLDER NAME TIME" takes a lock that is
// free in the folder, holds it for a time, and adds NAME to the file "done" there. There are as many
// locks as jobs may run at a time. If none is free, it adds NAME to the file "violations".
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if err := job(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "job:", err)
		os.Exit(1)
	}
}

func job(dir, name, hold string) error {
	d, err := time.ParseDuration(hold)
	if err != nil {
		return err
	}
	locks, err := filepath.Glob(filepath.Join(dir, "lock-*"))
	if err != nil {
		return err
	}
	for _, path := range locks {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		// The system frees the lock when the process ends, however it does.
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			continue
		}
		if err := add(filepath.Join(dir, "started"), name); err != nil {
			return err
		}
		time.Sleep(d)
		return add(filepath.Join(dir, "done"), name)
	}
	return fmt.Errorf("all %d locks are held: %w", len(locks), add(filepath.Join(dir, "violations"), name))
}

func add(path, name string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, name)
	if err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
