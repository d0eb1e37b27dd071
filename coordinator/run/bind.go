package run

// How the claims are bound that hold the slots of runs: see [pool.Holder.Bind]. They
// are given back when their run ends, and by nobody else.
const (
	// BindBridge is one that is kept for a run which nobody has started: nobody has to
	// stop for its slots to be freed.
	BindBridge = "bridge"
	// BindExecutor is one of a run that is started: it has no ttl or process of its
	// own.
	BindExecutor = "run"
)

// Binds tells whether a claim that is bound so holds the slots of a run.
func Binds(bind string) bool { return bind == BindBridge || bind == BindExecutor }
