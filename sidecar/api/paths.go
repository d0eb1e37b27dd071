package api

// Paths of the API. Below a path is what it names: /v1/claims/ID.
const (
	ClaimsPath      = "/v1/claims"
	PoolsPath       = "/v1/pools"
	RunsPath        = "/v1/runs"
	QueuesPath      = "/v1/queues"
	LimitsPath      = "/v1/limits"
	CoordinatorPath = "/v1/coordinator"
	HostsPath       = "/v1/hosts"
	WorkersPath     = "/v1/workers"
	SourcesPath     = "/v1/sources"
	EventsPath      = "/v1/events"
	ActionsPath     = "/v1/actions"
	WhoamiPath      = "/v1/whoami"

	HealthPath  = "/healthz"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
)

// Headers that say what the output of a step instance is of.
const (
	OutputAttempt = "Berth-Output-Attempt"
	OutputLeftOut = "Berth-Output-Left-Out"
	OutputRunning = "Berth-Output-Running"
	OutputFile    = "Berth-Output-File"
)
