package api

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status string `json:"status"`
	// Dispatcher offers slots to waiting claims.
	Dispatcher *Dispatcher `json:"dispatcher,omitempty" doc:"The instance that offers slots to the waiting claims of all hosts; left out if there is none. At most a second old. Only in /readyz of a sidecar."`
	// Warnings say what does not work although claims can be made.
	Warnings []string `json:"warnings,omitempty" nullable:"false" doc:"What needs a person although claims can be made, as a state directory that can't be written."`
}

// Identity is who sends a request, and what it may do.
type Identity struct {
	Identity string   `json:"identity" example:"user:alice" doc:"As rules, records and owners have it."`
	Kind     string   `json:"kind" enum:"user,token,cert,anonymous" doc:"How it was authenticated."`
	Names    []string `json:"names,omitempty" nullable:"false" doc:"The groups of a user, if rules name groups, or the further names of a certificate."`
	Roles    []string `json:"roles" nullable:"false" example:"[\"view\",\"claim:etl-*\"]" doc:"Roles, each with the pattern of the pools or queues that it is for, if it is not for all."`
	From     string   `json:"from,omitempty" doc:"The address that it comes from; not over the unix socket."`
}

// WorkerChange says why the mode of a worker is changed.
type WorkerChange struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"One line, kept with the worker and its action."`
}
