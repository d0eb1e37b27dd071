package house

// The exceptions from the limits. A list only shrinks: a new name does not belong here.

var manyFields = []exception{
	{
		"a table of settings", excess{
			"config.Settings": 46,
		},
	},
	{
		"a term of the leader is one state of several files", excess{
			"coordinator.leader": 28,
		},
	},
	{
		"the worker is one state of several files", excess{
			"sidecar/worker.Worker": 42,
		},
	},
}

var manyFunctions = []exception{
	{
		"a command reads its flags and calls berth through one request", excess{
			"cmd/berth.request": 97,
		},
	},
	{
		"endpoints are methods of the server that serves them, until they are rows of a table", excess{
			"sidecar.apiServer": 97,
			"sidecar.session":   77,
		},
	},
	{
		"a method for each operation of the API", excess{
			"sidecar/client.Client": 67,
		},
	},
	{
		"the worker is one state of several files", excess{
			"sidecar/worker.Worker": 72,
		},
	},
}

var manyOperators = []exception{
	{
		"older than the limit: conditions to be given names", excess{
			"cmd/berth.logFollower.ended":      4,
			"cmd/berth.workerList":             4,
			"config.IsPeerURL":                 4,
			"config.WithoutSettings":           4,
			"config.loader.memberFiles":        4,
			"coordinator.state.alive":          4,
			"coordinator/run.Spec.asks":        13,
			"coordinator/step.ParseWhich":      5,
			"coordinator/step.ParseWorkerID":   4,
			"coordinator/step.Store.DropFiles": 4,
			"e2e.RunHistory.check":             6,
			"internal/access.Policy.Grants":    4,
			"internal/access.validPattern":     4,
			"internal/bench.Config.Rows":       4,
			"internal/strict.Ambiguous":        4,
			"lease.group.needless":             4,
			"sidecar.wanted.same":              6,
			"sidecar/api.ClaimListInput.Page":  6,
			"sidecar/claims.Holders.Renew":     5,
			"sidecar/claims.decodeBinding":     6,
			"sidecar/server.arrival.read":      4,
			"sidecar/server.guard.checkOrigin": 5,
			"sidecar/source.ValidateName":      5,
			"sidecar/ui.laterEnd":              5,
			"sidecar/worker.Worker.skips":      4,
			"sidecar/worker.execution.show":    5,
		},
	},
}

var manyWriters = []exception{
	{
		"a term of the leader is one state of several files", excess{
			"coordinator.leader.after":      2,
			"coordinator.leader.bridgedAt":  2,
			"coordinator.leader.deadline":   3,
			"coordinator.leader.dirty":      4,
			"coordinator.leader.unresolved": 2,
			"coordinator.state.gone":        2,
			"coordinator.stepState.active":  2,
			"coordinator.stepState.touched": 2,
		},
	},
	{
		"its state is to be written in one file", excess{
			"sidecar/claims.Holder.expires":      2,
			"sidecar/claims.Holder.gone":         2,
			"sidecar/claims.Holder.killAt":       2,
			"sidecar/claims.Holder.saved":        3,
			"sidecar/claims.Holder.unseen":       2,
			"sidecar/claims.Holder.unstopped":    2,
			"sidecar/claims.Holder.why":          2,
			"sidecar/claims.Holders.byID":        2,
			"sidecar/executor.Executor.giveUpAt": 2,
			"sidecar/executor.Executor.why":      2,
			"sidecar/executor.Executors.starts":  2,
			"sidecar/source.term.shown":          2,
			"sidecar/ui.runQuery.after":          2,
			"sidecar/ui.runQuery.from":           2,
			"sidecar/ui.runQuery.status":         2,
			"sidecar/ui.trouble.born":            2,
		},
	},
	{
		"the worker is one state of several files", excess{
			"sidecar/worker.Worker.active":     4,
			"sidecar/worker.Worker.dirty":      4,
			"sidecar/worker.Worker.early":      2,
			"sidecar/worker.Worker.unresolved": 2,
			"sidecar/worker.Worker.waiting":    2,
			"sidecar/worker.begun.at":          2,
			"sidecar/worker.queue.refused":     2,
		},
	},
}
