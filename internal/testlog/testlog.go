// Package testlog keeps what a program or a logger writes, for tests that read it meanwhile.
package testlog

import (
	"strings"
	"sync"
	"testing"
)

// Buffer is what was written so far. It is safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// New returns a buffer that is shown if the test fails.
func New(t testing.TB) *Buffer {
	b := new(Buffer)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", b)
		}
	})
	return b
}

// Write appends to the buffer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines returns the lines so far, without their ends, that contain all the texts.
func (b *Buffer) Lines(texts ...string) (lines []string) {
	for line := range strings.Lines(b.String()) {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(line, text)
		}
		if has {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}
