package pool

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/problem"
)

// ValidateName refuses what can't be the name of a pool.
func ValidateName(name string) error {
	if !isPoolName(name) {
		return problem.Field("pool", "invalid pool name %q: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(name))
	}
	return nil
}

// ValidateID refuses what can't be the id of a claim.
func ValidateID(id string) error {
	if err := validateLength("id", id, MaxID); err != nil {
		return err
	}
	if !isWord(id) {
		return problem.Field("id", "%q is no claim id: use 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(id), MaxID)
	}
	return nil
}

// ValidateClaim refuses what can't name a claim: an id is wanted, or HOST/INSTANCE/ID.
func ValidateClaim(claim string) error {
	by, id, named := cutInstance(claim)
	if named && (!isPoolName(by.Host) || !isPoolName(by.Instance)) || strings.Contains(id, "/") {
		return problem.Field("id", "%q names no claim: use an id, or HOST/INSTANCE/ID", problem.Clip(claim))
	}
	return ValidateID(id)
}

func isPoolName(s string) bool {
	return len(s) <= maxPoolName && isWord(s) && strings.ToLower(s) == s
}

// isWord reports whether s is made of letters, digits, '.', '_' and '-', and
// begins with one of the first two. It is asked for every event of a watch.
func isWord(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// IsLine reports whether a text can be shown in one line of text, also on a terminal: it
// is UTF-8 without control characters, line separators, and characters that change the
// direction in which the text around them is shown.
func IsLine(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
	})
}

// ValidateLine refuses a text that is not [IsLine].
func ValidateLine(field, s string) error {
	if !IsLine(s) {
		return problem.Field(field, "%q can't be shown in one line of text: use text without control characters, line breaks and characters that change its direction", problem.Clip(s))
	}
	return nil
}

// validateLength refuses a text of more than most bytes.
func validateLength(field, s string, most int) error {
	if len(s) > most {
		return problem.Field(field, "it has %d bytes: use at most %d", len(s), most)
	}
	return nil
}

// cutInstance splits HOST/INSTANCE/ID, and is false for an id alone, which has no
// slash.
func cutInstance(claim string) (by Holder, id string, ok bool) {
	host, rest, _ := strings.Cut(claim, "/")
	instance, id, ok := strings.Cut(rest, "/")
	if !ok {
		return Holder{}, claim, false
	}
	return Holder{Host: host, Instance: instance}, id, true
}
