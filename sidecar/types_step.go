package sidecar

// StepTake says who takes a step instance.
type StepTake struct {
	Executor string    `json:"executor,omitempty" maxLength:"128" doc:"Tells executors of one host apart: asking again with the same one finds the same attempt. Made up if left out."`
	TTL      *Duration `json:"ttl,omitempty" doc:"The instance is lost unless its executor says within this time that it lives, 5s to 24h; 0s is untimed. 1m if left out."`
	Wait     *Duration `json:"wait,omitempty" doc:"How long to wait for the slots that it takes; 0s not at all. As the sidecar's settings say if left out."`
}

// StepHeartbeat says that the executor of an attempt lives.
type StepHeartbeat struct {
	Fence int64 `json:"fence,omitempty" minimum:"1" doc:"Of the attempt: take has answered it."`
}

// StepFinish ends the attempt of a step instance.
type StepFinish struct {
	Fence    int64  `json:"fence,omitempty" minimum:"1" doc:"Of the attempt: take has answered it."`
	Status   string `json:"status,omitempty" enum:"succeeded,failed,canceled" doc:"One that has failed may be tried again; canceled is for one that was stopped because its run had ended."`
	ExitCode int    `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty" doc:"Why it failed. Cut at 4096 bytes."`
	Output   string `json:"output,omitempty" doc:"What it has written. The last 16 KiB are kept."`
}

// StepRetry has a step instance tried again that has failed or was canceled.
type StepRetry struct {
	Reason string `json:"reason,omitempty" doc:"Told with the event. Cut at 4096 bytes."`
}

// TakenStep is a step instance as its executor sees it.
type TakenStep struct {
	StepWork
	Trusted
	TTL Duration `json:"ttl" doc:"Within which a heartbeat must come; 0s if none needs to."`
}
