// Package source makes runs of what a command lists.
//
// # Nouns
//
//   - A [Spec] says what a source is: the command that lists, how often it is run, and
//     the run that is made of each item.
//   - An [Item] is one of what was listed. Its id tells it from the others, for as long
//     as it is listed.
//   - A [Var] declares a field that items can have besides their id. A source that
//     declares none takes any.
//   - A look is one run of the command and all that follows from it: items that were not
//     listed before are submitted, in their order, each as one run.
//   - A mark says that an item was submitted. It stays while the item is listed, also
//     after its run was forgotten.
//   - A [Source] is one process of a source. Several can have the same name: the one that
//     stood first looks, the others stand by and take over when it is gone.
//
// # What always holds
//
//   - Nothing comes of a look whose command failed, did not end in time, or printed what
//     can't be read.
//   - The id of an item's run is made of the names of both, so submitting an item again
//     finds its run. An item is marked after it was submitted, never before: a process
//     that dies in between has it submitted again, which makes no second run.
//   - A mark is removed only if its item has not been listed for a while and its run is
//     forgotten. So an id that comes back later is a new item and gets a new run.
//   - Marks are written under a compare of the key of who looks: whoever has lost its
//     place writes none.
//
// # When things fail
//
// A look that fails is told once in a row, and tried again after the interval, later
// after twice as long each time. An item that can't be submitted is told, the others go
// on. While etcd is away looks fail, and the place is lost with the lease it hangs on.
//
// To read along: spec.go (what is asked for), item.go (what is listed), submission.go
// (the run of an item), vars.go (which fields an item has), mark.go (which items are new), command.go (how the command is
// run), look.go and term.go (what one process does while it is its turn), election.go
// and source.go (whose turn it is), record.go and store.go (what others see of it).
package source
