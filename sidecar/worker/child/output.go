package child

import (
	"fmt"
	"io"
)

// output writes what a command says to a file, up to a limit. It takes all the
// rest as well, so that the command never waits for anybody to read.
type output struct {
	to    io.Writer
	limit int64

	kept, cut int64
	midline   bool // what was kept ends within a line
	fault     error
}

// Write takes all that it is given.
func (o *output) Write(p []byte) (int, error) {
	room := p[:min(int64(len(p)), o.limit-o.kept)]
	if o.fault == nil && len(room) > 0 {
		var n int
		n, o.fault = o.to.Write(room)
		o.kept += int64(n)
		if n > 0 {
			o.midline = room[n-1] != '\n'
		}
		room = room[:n]
	} else if o.fault != nil {
		room = nil
	}
	if dropped := len(p) - len(room); dropped > 0 {
		if o.cut == 0 {
			o.say(o.why())
		}
		o.cut += int64(dropped)
	}
	return len(p), nil
}

// finish says how much was cut, and returns it.
func (o *output) finish() int64 {
	if o.cut > 0 {
		o.say(fmt.Sprintf("%d bytes of output were cut", o.cut))
	}
	return o.cut
}

func (o *output) why() string {
	if o.fault != nil {
		return fmt.Sprintf("the output is cut here: %v", o.fault)
	}
	return fmt.Sprintf("the output is cut here, at its limit of %d bytes", o.limit)
}

// say adds a line of berth's own. If it can't be written there is nobody to tell.
func (o *output) say(line string) {
	if o.midline {
		line = "\nberth: " + line
	} else {
		line = "berth: " + line
	}
	o.midline = false
	_, _ = io.WriteString(o.to, line+"\n")
}
