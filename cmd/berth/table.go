package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// page is what people read: lines and tables. Writing it can't fail, since it
// goes to memory first.
type page struct {
	out io.Writer
	now time.Time
}

// line writes one line.
func (p *page) line(format string, args ...any) {
	fmt.Fprintln(p.out, clean(fmt.Sprintf(format, args...)))
}

// gap writes an empty line.
func (p *page) gap() { fmt.Fprintln(p.out) }

// table writes a head and rows in columns that line up. Without rows it says so
// with the line none.
func (p *page) table(none string, head []string, rows [][]string) {
	if len(rows) == 0 {
		p.line("%s", none)
		return
	}
	p.columns(append([][]string{head}, rows...))
}

// columns writes rows in columns that line up.
func (p *page) columns(rows [][]string) {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = clean(cell); cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush()
}

// clean takes out what would do something to a terminal: runs, steps and labels
// are whatever somebody has sent.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
