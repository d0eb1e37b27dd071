package run

import "fmt"

// BlockKind says what holds a run up.
type BlockKind string

// The kinds.
const (
	BlockRunLimit BlockKind = "run_limit" // max_concurrent_runs
	BlockTagLimit BlockKind = "tag_limit"
	BlockPool     BlockKind = "pool" // slots that it needs
	// BlockNotBefore is never noted: the run says it itself.
	BlockNotBefore BlockKind = "not_before"
)

// Block is why a run is still queued.
type Block struct {
	Kind BlockKind `json:"kind"`
	// Text explains it to people: "global run limit (10/10)".
	Text string `json:"text"`
	// Tag is what a [BlockTagLimit] limits: KEY=VALUE, or KEY if all values count
	// together.
	Tag string `json:"tag,omitempty"`
}

// RunLimitBlock is the block by max_concurrent_runs.
func RunLimitBlock(used, limit int) Block {
	return Block{Kind: BlockRunLimit, Text: fmt.Sprintf("global run limit (%d/%d)", used, limit)}
}

// PoolBlock is the block by pools: why as [pool.Space.Why] says it.
func PoolBlock(why string) Block { return Block{Kind: BlockPool, Text: why} }

// TagLimitBlock is the block by a limit of a tag. The value is the run's own, or
// empty if the limit is about all values together.
func TagLimitBlock(key, value string, used, limit int) Block {
	if value != "" {
		key += "=" + value
	}
	return Block{Kind: BlockTagLimit, Text: fmt.Sprintf("tag limit: %s (%d/%d)", key, used, limit), Tag: key}
}
