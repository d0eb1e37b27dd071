package child

import "strings"

// An order is one line in the pipe control. It is far shorter than what the system
// writes into a pipe as a whole.

const stopOrder = "stop"

// encodeStop writes the order to stop.
func encodeStop(reason string) []byte {
	return []byte(stopOrder + " " + clip(reason) + "\n")
}

// decodeStop reads an order without the end of its line. It is false for what is
// none.
func decodeStop(line string) (reason string, ok bool) {
	word, reason, _ := strings.Cut(line, " ")
	return clip(reason), word == stopOrder
}
