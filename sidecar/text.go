package sidecar

import "strconv"

// clip keeps a message readable that repeats what somebody sent.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// quote is clip in quotes.
func quote(s string) string { return strconv.Quote(clip(s)) }

// kindOf names what a JSON value is.
func kindOf(data []byte) string {
	for _, c := range data {
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '{':
			return "an object"
		case '[':
			return "an array"
		case '"':
			return "the string " + clip(string(data))
		case 'n':
			return "null"
		}
		break
	}
	return clip(string(data))
}
