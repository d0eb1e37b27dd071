package child

import "errors"

// Verb is the command of berth that a supervisor is: see [Supervise].
const Verb = "supervise"

var (
	// ErrRunning tells that a child has not ended yet.
	ErrRunning = errors.New("the command is still running")
	// ErrVanished tells that nobody will ever know how a child has ended: its
	// supervisor was killed, or was never started.
	ErrVanished = errors.New("the command has vanished: its supervisor was killed before it could write down a result")
	// ErrNotBegun tells of a child that has vanished that its command was never begun.
	ErrNotBegun = errors.New("the command was never begun")
)
