package child

import (
	"fmt"
	"io"
)

// outputFile is where output goes.
type outputFile interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
}

// output writes what a command says to a file, up to a limit: beyond it the beginning is
// kept, and the end, with a mark between them that says how much is missing there. It takes
// everything, so that the command never waits for anybody to read.
//
// The end is where the error is, so it is on disk at any time: when the file is full, the
// last quarter of the limit is moved down behind the first half. That is one more copy of
// what is written, and no more.
type output struct {
	to    outputFile
	limit int64
	// shifted is called before the file is cut short, with what is to be added to a place
	// in the end of the file to get the place in all that was written.
	shifted func(int64)

	size   int64 // of the file
	cut    int64 // bytes that are missing where the mark is
	marked bool
	lost   int64 // bytes that could not be written
	last   byte
	fault  error
}

// markOf is the line between the beginning and the end. It is as long whatever the number.
func markOf(cut int64) string {
	return fmt.Sprintf("\nberth: %20d bytes of output are left out here\n", cut)
}

// Write takes all that it is given.
func (o *output) Write(p []byte) (int, error) {
	all := len(p)
	for len(p) > 0 && o.fault == nil {
		room := o.limit - o.kept()
		if room <= 0 {
			if room = o.limit - o.head() - o.tail(); room <= 0 {
				break // nothing is kept
			}
			if o.fault = o.shift(); o.fault != nil {
				break
			}
		}
		some := p[:min(int64(len(p)), room)]
		n, err := o.to.WriteAt(some, o.size)
		o.fault = err
		if o.size += int64(n); n > 0 {
			o.last = some[n-1]
		}
		p = p[n:]
	}
	o.lost += int64(len(p))
	return all, nil
}

// head and tail are how much of the beginning and of the end is kept at least.
func (o *output) head() int64 { return o.limit / 2 }
func (o *output) tail() int64 { return o.limit / 4 }

// begin is where the end begins in the file.
func (o *output) begin() int64 { return o.head() + int64(len(markOf(0))) }

// kept is how much of the output is in the file.
func (o *output) kept() int64 {
	if o.marked {
		return o.size - int64(len(markOf(0)))
	}
	return o.size
}

// shift makes room: the last part of the file moves down, behind the mark.
func (o *output) shift() error {
	from, to := o.size-o.tail(), o.begin()
	if !o.marked && from < to { // only where the limit is tiny: the mark must not overwrite what moves
		return o.shiftWhole(from)
	}
	missing := from - o.head()
	if o.marked {
		missing = from - to
	}
	buffer := make([]byte, 64<<10)
	for at := from; at < o.size; {
		n := min(int64(len(buffer)), o.size-at)
		if _, err := o.to.ReadAt(buffer[:n], at); err != nil {
			return err
		}
		if _, err := o.to.WriteAt(buffer[:n], to+at-from); err != nil {
			return err
		}
		at += n
	}
	return o.shorten(to+o.size-from, missing)
}

// shiftWhole is shift for an end that fits into memory.
func (o *output) shiftWhole(from int64) error {
	end := make([]byte, o.size-from)
	if _, err := o.to.ReadAt(end, from); err != nil {
		return err
	}
	if _, err := o.to.WriteAt(end, o.begin()); err != nil {
		return err
	}
	return o.shorten(o.begin()+int64(len(end)), from-o.head())
}

// shorten writes the mark and cuts the file short.
func (o *output) shorten(size, missing int64) error {
	o.cut, o.marked, o.size = o.cut+missing, true, size
	if o.shifted != nil {
		o.shifted(o.cut - int64(len(markOf(0))))
	}
	if _, err := o.to.WriteAt([]byte(markOf(o.cut)), o.head()); err != nil {
		return err
	}
	return o.to.Truncate(size)
}

// finish says how much could not be written, and returns how much is missing in all.
func (o *output) finish() int64 {
	if o.lost == 0 {
		return o.cut
	}
	line := fmt.Sprintf("berth: %d bytes of output were cut at the end: %s\n", o.lost, o.why())
	if o.size > 0 && o.last != '\n' {
		line = "\n" + line
	}
	_, _ = o.to.WriteAt([]byte(line), o.size) // else there is nobody to tell
	return o.cut + o.lost
}

func (o *output) why() string {
	if o.fault != nil {
		return o.fault.Error()
	}
	return fmt.Sprintf("none is kept, with a limit of %d bytes", o.limit)
}
