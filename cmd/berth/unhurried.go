//go:build unix

package main

import (
	"bytes"
	"io"
	"time"
)

// reportTime is how long a program waits for the writing of a message.
const reportTime = 100 * time.Millisecond

// unhurried is a writer of messages for which a program does not wait long: a pipe that is full, or a
// terminal whose output was stopped, does not keep exec from stopping its command in time. It drops
// messages while an earlier one cannot be written, and reports no errors.
type unhurried struct {
	to   io.Writer
	free chan struct{} // has an element while nothing is written
}

func newUnhurried(to io.Writer) *unhurried {
	u := &unhurried{to, make(chan struct{}, 1)}
	u.free <- struct{}{}
	return u
}

// Write writes one message.
func (u *unhurried) Write(message []byte) (int, error) {
	over := time.NewTimer(reportTime)
	defer over.Stop()
	select {
	case <-u.free:
	case <-over.C:
		return len(message), nil
	}
	copied, done := bytes.Clone(message), make(chan struct{})
	go func() {
		_, _ = u.to.Write(copied) // nobody could read that it failed
		u.free <- struct{}{}
		close(done)
	}()
	select {
	case <-done:
	case <-over.C:
	}
	return len(message), nil
}
