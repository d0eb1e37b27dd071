package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

const (
	// watchLook is how often a run is looked at that is watched: more rarely if that
	// takes long, as with many instances.
	watchLook  = time.Second
	watchShare = 20
)

// watchRun shows a run again and again until it has ended: in place on a terminal, in
// a line each time elsewhere, and as a whole at its end.
func watchRun(c *cli.Context, s run.Store, p *printer, id string) error {
	lines := progress{out: c.App.Writer}
	sc := newScreen(c.App.Writer)
	for {
		begun := time.Now()
		v, err := readRun(c.Context, s, id, failuresShown)
		away := problem.CodeOf(err) == problem.EtcdUnavailable
		switch {
		case err != nil && !away:
			return err
		case sc != nil && away:
			sc.add("etcd does not answer, waiting for it")
		case sc != nil:
			p.now = time.Now()
			var b bytes.Buffer
			detailText(&page{out: &b, now: p.now}, v)
			sc.draw(b.String(), v.run.Status.Ended())
		case away:
			lines.tell("etcd does not answer, waiting for it")
		case v.run.Status.Ended():
			p.now = time.Now()
			return p.print(v.record(), func(out *page) { detailText(out, v) })
		default:
			lines.tell(v.progressLine(false))
		}
		if !away && v.run.Status.Ended() {
			return nil
		}
		if err := pause(c.Context, max(watchLook, watchShare*time.Since(begun))); err != nil {
			return err
		}
	}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// screen shows a text on a terminal, in the place of the one before.
type screen struct {
	out   io.Writer
	size  func() (width, height int)
	text  string
	drawn int // lines
}

// newScreen returns the screen of stdout, nil if it is no terminal.
func newScreen(out io.Writer) *screen {
	if !isatty.IsTerminal(os.Stdout.Fd()) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &screen{out: out, size: func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0, 0
		}
		return int(size.Col), int(size.Row)
	}}
}

// draw shows a text. The last one is shown whole, and stays.
func (s *screen) draw(text string, last bool) {
	s.text = text
	if !last {
		text = fit(text, s.size)
	}
	s.replace(text)
}

// add shows a line below the text.
func (s *screen) add(line string) { s.replace(fit(s.text+line+"\n", s.size)) }

func (s *screen) replace(text string) {
	up := ""
	if s.drawn > 0 {
		up = fmt.Sprintf("\r\x1b[%dA\x1b[J", s.drawn)
	}
	s.drawn = strings.Count(text, "\n")
	fmt.Fprint(s.out, up+text)
}

// fit cuts a text so that it can be written over: no line may wrap, and none may leave
// the screen at its top.
func fit(s string, size func() (width, height int)) string {
	width, height := size()
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if most := height - 1; most > 1 && len(lines) > most {
		more := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("… %s more: the window is too low\n", text.Count(more, "line")))
	}
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		if most := width - 1; most > 1 && utf8.RuneCountInString(line) > most {
			line = string([]rune(line)[:most-1]) + "…"
		}
		lines[i] = line + "\n"
	}
	return strings.Join(lines, "")
}
