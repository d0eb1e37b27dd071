//go:build !race

package embedtest

// raceDetector tells whether the tests run under the race detector.
const raceDetector = false
