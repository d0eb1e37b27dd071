package instance

import "github.com/berthhq/berth/pool/wire"

// Kind is a kind of process. Where no coordinator leads, a process dispatches before those of earlier kinds.
type Kind = wire.Kind

// The kinds: processes that end with a command, those that stay, and those that run etcd too.
const (
	Command = wire.Command
	Service = wire.Service
	Server  = wire.Server
)
