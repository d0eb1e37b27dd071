package store

// Fence is a fencing token. It is larger for each later holder of a slot, and for each later
// attempt of a run or step, so that a resource which keeps the largest one that it has met can
// refuse all earlier holders, if a pool of one slot guards it. Claims that one transaction grants
// have the same token.
//
// It is the revision at which the keys of the holder were put, times 1024. Revisions stay below
// 2^43 for longer than any etcd lives, so fencing tokens stay below 2^53, and JSON numbers carry
// them exactly.
type Fence int64

// grantsPerRevision keeps fencing tokens above those of versions that could grant the same keys
// up to 1,023 times more without a write.
const grantsPerRevision = 1024

// FenceAt returns the fencing token of what was put at a revision.
func FenceAt(revision int64) Fence { return Fence(revision * grantsPerRevision) }

// Revision returns the revision at which the keys of its holder were put.
func (f Fence) Revision() int64 { return int64(f) / grantsPerRevision }
