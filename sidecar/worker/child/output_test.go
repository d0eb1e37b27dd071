package child

import (
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// memory is a file in memory, on a disk with limited space.
type memory struct {
	data  []byte
	space int // 0: no bound
}

var errFull = errors.New("no space left")

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	n := copy(p, m.data[min(at, int64(len(m.data))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	n := len(p)
	if m.space > 0 {
		n = max(0, min(n, m.space-int(at)))
	}
	if more := int(at) + n - len(m.data); more > 0 {
		m.data = append(m.data, make([]byte, more)...)
	}
	copy(m.data[at:], p[:n])
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func (m *memory) Truncate(size int64) error {
	m.data = m.data[:size]
	return nil
}

func TestOutputWithinItsLimitIsKeptAsItIs(t *testing.T) {
	to := &memory{}
	o := &output{to: to, limit: 6}
	for _, text := range []string{"", "ab", "\ncde"} {
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	if cut := o.finish(); cut != 0 || string(to.data) != "ab\ncde" {
		t.Errorf("%d bytes were cut, and %q is kept", cut, to.data)
	}
}

func TestOfLongOutputTheBeginningAndTheEndAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all strings.Builder
		to := &memory{}
		shift := int64(0)
		o := &output{to: to, limit: rapid.Int64Range(4, 400).Draw(t, "limit"), shifted: func(n int64) { shift = n }}
		for _, text := range rapid.SliceOf(rapid.StringMatching(`[a-c\n]{0,90}`)).Draw(t, "texts") {
			all.WriteString(text)
			if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			// At any time the end of the file is the end of the output, and its place is known.
			end := min(int64(all.Len()), o.limit/4)
			if int64(len(to.data))+shift != int64(all.Len()) || !strings.HasSuffix(string(to.data), all.String()[int64(all.Len())-end:]) {
				t.Fatalf("%q, moved by %d, is kept of %q", to.data, shift, all.String())
			}
		}
		cut := o.finish()
		if cut == 0 {
			if string(to.data) != all.String() {
				t.Fatalf("%q is kept of %q", to.data, all.String())
			}
			return
		}
		begin, end, ok := strings.Cut(string(to.data), gapLine(cut))
		if !ok || int64(len(begin)) != o.limit/2 || int64(len(end)) < o.limit/4 || int64(len(begin)+len(end)) > o.limit {
			t.Fatalf("%q is kept at a limit of %d, and %d bytes are missing", to.data, o.limit, cut)
		}
		if want := begin + all.String()[len(begin):len(begin)+int(cut)] + end; want != all.String() {
			t.Fatalf("%q and %q are kept of %q", begin, end, all.String())
		}
	})
}

func TestNothingIsKeptWithALimitOfNothing(t *testing.T) {
	to := &memory{}
	o := &output{to: to}
	_, _ = o.Write([]byte("abc"))
	if cut := o.finish(); cut != 3 {
		t.Errorf("%d bytes were cut", cut)
	}
}

func TestAFullDiskIsALimitToo(t *testing.T) {
	to := &memory{space: 3}
	o := &output{to: to, limit: 100}
	for range 2 {
		if n, err := o.Write([]byte("12345")); n != 5 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	to.space = 0 // space has been freed
	if cut := o.finish(); cut != 7 || string(to.data) != "123\nberth: 7 bytes of output were cut at the end: no space left\n" {
		t.Errorf("%d bytes were cut, and %q is kept", cut, to.data)
	}
}
