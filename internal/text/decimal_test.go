package text

import "testing"

func TestIsDecimal_IsWhatANumberIsWrittenAs(t *testing.T) {
	for s, want := range map[string]bool{
		"0": true, "1": true, "10": true, "-1": true, "-10": true, "99999999999999999999": true,
		"": false, "-": false, "+1": false, "-0": false, "00": false, "010": false, "-01": false, "0x10": false, "1_0": false,
		"1e3": false, "1.0": false, " 1": false, "1 ": false, "０": false, "−1": false, "--1": false, "x": false,
	} {
		if got := IsDecimal(s); got != want {
			t.Errorf("IsDecimal(%q) is %t", s, got)
		}
	}
}
