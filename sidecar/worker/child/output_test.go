package child

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestOutputWithinItsLimitIsKeptAsItIs(t *testing.T) {
	var to strings.Builder
	o := &output{to: &to, limit: 6}
	for _, text := range []string{"", "ab", "\ncde"} {
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	if cut := o.finish(); cut != 0 || to.String() != "ab\ncde" {
		t.Errorf("%d bytes were cut, and %q is kept", cut, to.String())
	}
}

func TestWhatIsCutIsCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var to, all strings.Builder
		o := &output{to: &to, limit: rapid.Int64Range(0, 50).Draw(t, "limit")}
		for _, text := range rapid.SliceOf(rapid.StringMatching(`[a-c\n]{0,20}`)).Draw(t, "texts") {
			all.WriteString(text)
			if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		cut := o.finish()
		if want := max(0, int64(all.Len())-o.limit); cut != want {
			t.Errorf("%d bytes were cut, want %d", cut, want)
		}
		kept, rest, told := strings.Cut(to.String(), "berth: ")
		if told != (cut > 0) || told && strings.Count(rest, "\n") != 2 {
			t.Errorf("it says %q", to.String())
		}
		if told {
			kept = all.String()[:o.limit]
		}
		if !strings.HasPrefix(to.String(), kept) || !strings.HasPrefix(all.String(), kept) || len(kept) > int(o.limit) {
			t.Errorf("%q is kept of %q", to.String(), all.String())
		}
	})
}

// full takes a few bytes, as a disk does.
type full struct {
	strings.Builder
	room int
}

var errFull = errors.New("no space left")

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	f.Builder.Write(p[:n])
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func (f *full) WriteString(s string) (int, error) { return f.Write([]byte(s)) }

func TestAFullDiskIsALimitToo(t *testing.T) {
	to := &full{room: 3}
	o := &output{to: to, limit: 100}
	for range 2 {
		if n, err := o.Write([]byte("12345")); n != 5 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	to.room = 100 // somebody has made room
	if cut := o.finish(); cut != 7 || to.String() != "123berth: 7 bytes of output were cut\n" {
		t.Errorf("%d bytes were cut, and %q is kept", cut, to.String())
	}
	if why := o.why(); !strings.Contains(why, errFull.Error()) {
		t.Errorf("it says %q", why)
	}
}
