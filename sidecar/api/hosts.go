package api

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status string `json:"status"`
	// Warnings say what does not work although claims can be made.
	Warnings []string `json:"warnings,omitempty" nullable:"false" doc:"What needs a person although claims can be made, as a state directory that can't be written."`
}

// WorkerChange says why the mode of a worker is changed.
type WorkerChange struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"One line, kept with the worker and its action."`
}
