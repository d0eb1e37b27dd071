package sidecar

import (
	"github.com/berthhq/berth/internal/problem"
)

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
			return "the string " + problem.Clip(string(data))
		case 'n':
			return "null"
		}
		break
	}
	return problem.Clip(string(data))
}

// quote quotes input in a message, shortened.
func quote(s string) string { return problem.Quote(s) }
