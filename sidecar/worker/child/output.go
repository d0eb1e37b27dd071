package child

import (
	"fmt"
	"io"
)

// outputFile is the file of an output.
type outputFile interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
}

// output writes the output of a command to a file, up to a limit: beyond it, the beginning
// and the end are kept, with a line between them that states how much is missing. It accepts
// everything, so that the command never blocks.
//
// The end has the error message, so it is always on disk: when the file is full, the last
// quarter of the limit is moved behind the first half, which copies each byte at most once
// more.
type output struct {
	to    outputFile
	limit int64
	// shifted is called before the file is truncated, with what must be added to an offset
	// in the end of the file to get the offset in the whole output.
	shifted func(int64)

	size   int64 // of the file
	cut    int64 // bytes that are missing at the gap
	gapped bool
	lost   int64 // bytes that could not be written
	last   byte
	fault  error
}

// gapLine returns the line between the beginning and the end. Its length is constant.
func gapLine(cut int64) string {
	return fmt.Sprintf("\nberth: %20d bytes of output are left out here\n", cut)
}

// Write accepts all of p.
func (o *output) Write(p []byte) (int, error) {
	all := len(p)
	for len(p) > 0 && o.fault == nil {
		free := o.limit - o.kept()
		if free <= 0 {
			if free = o.limit - o.head() - o.tail(); free <= 0 {
				break // nothing is kept
			}
			if o.fault = o.shift(); o.fault != nil {
				break
			}
		}
		some := p[:min(int64(len(p)), free)]
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

// head and tail are the minimum sizes of the kept beginning and end.
func (o *output) head() int64 { return o.limit / 2 }
func (o *output) tail() int64 { return o.limit / 4 }

// begin is the offset of the end in the file.
func (o *output) begin() int64 { return o.head() + int64(len(gapLine(0))) }

// kept is the size of the output in the file.
func (o *output) kept() int64 {
	if o.gapped {
		return o.size - int64(len(gapLine(0)))
	}
	return o.size
}

// shift frees space: the last part of the file moves behind the gap.
func (o *output) shift() error {
	from, to := o.size-o.tail(), o.begin()
	if !o.gapped && from < to { // only with a tiny limit: the line must not overwrite what moves
		return o.shiftWhole(from)
	}
	missing := from - o.head()
	if o.gapped {
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

// shorten writes the line of the gap and truncates the file.
func (o *output) shorten(size, missing int64) error {
	o.cut, o.gapped, o.size = o.cut+missing, true, size
	if o.shifted != nil {
		o.shifted(o.cut - int64(len(gapLine(0))))
	}
	if _, err := o.to.WriteAt([]byte(gapLine(o.cut)), o.head()); err != nil {
		return err
	}
	return o.to.Truncate(size)
}

// finish appends how much could not be written, and returns how much is missing in all.
func (o *output) finish() int64 {
	if o.lost == 0 {
		return o.cut
	}
	line := fmt.Sprintf("berth: %d bytes of output were cut at the end: %s\n", o.lost, o.why())
	if o.size > 0 && o.last != '\n' {
		line = "\n" + line
	}
	_, _ = o.to.WriteAt([]byte(line), o.size) // there is no other place for it
	return o.cut + o.lost
}

func (o *output) why() string {
	if o.fault != nil {
		return o.fault.Error()
	}
	return fmt.Sprintf("nothing is kept with a limit of %d bytes", o.limit)
}
