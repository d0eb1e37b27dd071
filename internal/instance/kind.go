package instance

import "github.com/berthhq/berth/pool/wire"

// kinds are those of processes, by what their instances do. Others are services.
var kinds = map[string]wire.Kind{"exec": wire.Command}

// kindOf returns the kind of a process with an instance of a role.
func kindOf(role string) wire.Kind {
	if k, ok := kinds[role]; ok {
		return k
	}
	return wire.Service
}
