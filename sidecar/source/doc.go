// Package source polls a command that lists items, and submits a run for each new one.
//
// # Nouns
//
//   - A [Spec] describes a source: the command that lists, how often it is run, and the
//     run of each item.
//   - An [Item] is an entry of the list. Its id identifies it for as long as it is listed.
//   - A [Var] declares a field that items can have besides their id. A source that
//     declares none accepts any field.
//   - A [Poll] runs the command once, and submits each item that was not listed before as
//     one run, in the order of the list.
//   - A dedup record states that an item was submitted. It stays while the item is
//     listed, also after its run was deleted.
//   - A [Source] is one process of a source. Several can have the same name: the elected
//     leader polls, and the others take over when it is gone.
//
// # Invariants
//
//   - A poll whose command failed, did not end in time, or printed something unreadable
//     has no effect.
//   - The id of an item's run consists of the names of both, so submitting an item again
//     finds its run. The dedup record is written after the submission: if a process dies
//     in between, the item is submitted again, which creates no second run.
//   - A dedup record is deleted only if its item has not been listed for a while and its
//     run was deleted. An id that is listed again later is a new item with a new run.
//   - Dedup records are written only by the leader: see [election.Fence].
//
// # Errors
//
// A poll that fails is logged once in a row and repeated after the interval, later after
// twice as long each time. An item that cannot be submitted is logged, and the others are
// submitted. While etcd is not available, polls fail, and the leadership expires.
//
// Read spec.go, item.go, vars.go and submission.go (from the list to the run), then
// source.go, poll.go and dedup.go (one process), then store.go (what others read and ask).
package source
