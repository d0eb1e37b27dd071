package main

import (
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// progress tells people how something goes: in one line that changes on a
// terminal, in a line each elsewhere. The same is not told twice.
type progress struct {
	out   io.Writer
	what  string // that goes
	line  bool   // it is a terminal
	width func() int
	last  string
}

// newProgress tells of a run.
func newProgress(c *cli.Context, id string) *progress {
	return &progress{
		out: c.App.ErrWriter, what: "berth: run " + id + ": ",
		line: isatty.IsTerminal(os.Stderr.Fd()) && os.Getenv("TERM") != "dumb", width: terminalWidth,
	}
}

func (p *progress) tell(text string) {
	if text == p.last {
		return
	}
	p.last = text
	text = clean(p.what + text)
	if !p.line {
		fmt.Fprintln(p.out, text)
		return
	}
	// A line that wraps could not be written over.
	if most := p.width() - 1; most > 1 && utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most-1]) + "…"
	}
	fmt.Fprint(p.out, "\r\x1b[K"+text)
}

// end leaves the terminal to others.
func (p *progress) end() {
	if p.line && p.last != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// terminalWidth is that of stderr in columns, 0 if it is not known.
func terminalWidth() int {
	size, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
