package text

import "testing"

func TestSizesAreRead(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "4096": 4096, "1KiB": 1 << 10, "500MiB": 500 << 20, "1GiB": 1 << 30, "1.5GiB": 3 << 29, "2TiB": 2 << 40, "0MiB": 0, "010": 10,
	} {
		if got, ok := ParseSize(text); !ok || got != want {
			t.Errorf("%s: %d, %t, want %d", text, got, ok, want)
		}
		if got, ok := ParseSize(Size(want)); !ok || got != want {
			t.Errorf("%d is written as %s, which reads as %d", want, Size(want), got)
		}
	}
	for _, text := range []string{
		"", "-1", "+1", "1 GiB", "GiB", "1GB", "1G", "1g", "1gib", "1e3", "0x10", "1_000", "Inf", "NaN", "0.5", "1.5.5KiB", ".", "99999999999TiB", "9223372036854775807", "1KiBKiB", "1MiBKiB",
	} {
		if got, ok := ParseSize(text); ok {
			t.Errorf("%q reads as %d", text, got)
		}
	}
}
