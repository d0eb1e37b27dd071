package text

// IsDecimal reports whether a text is a whole number as it is written: 10 and -1, not +1, 010, 0x10, 1_0 or 1e3. A number
// that is too large for an int64 is one.
func IsDecimal(s string) bool {
	digits := s
	if len(s) > 1 && s[0] == '-' && s[1] != '0' {
		digits = s[1:]
	}
	if digits == "" || len(digits) > 1 && digits[0] == '0' {
		return false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
