package pool

// Room is what [Admit] needs to know of a pool.
type Room struct {
	// Limit of slots, or [Unlimited].
	Limit int
	// Used slots; can be above the limit after it was lowered.
	Used int
	// Open pools grant. Unknown, paused and unreadable ones do not.
	Open bool
}

// RoomNeed is what a waiter takes of the room with that index.
type RoomNeed struct{ Room, N int }

// Waiting is what [Admit] needs to know of a waiter.
type Waiting struct {
	Needs []RoomNeed
	// Mine waiters are granted here; the others keep their place.
	Mine bool
	// Reserve keeps together what the waiter needs while it does not fit.
	Reserve bool
	// Exclusive waiters have lost one race after the other: while one fits and
	// has not gone, nobody behind it gets into its pools.
	Exclusive bool
	// Yielded waiters fitted for too long without being granted by their host.
	Yielded bool
}

// Decision is the answer of [Admit]: indexes into the line it was given, in
// order.
type Decision struct {
	// Grants are waiters of this instance that may take their slots now.
	Grants []int
	// Fits are waiters of others that may: room is kept for them.
	Fits []int
	// Free is what is left of each room for those behind the line, and Reserved
	// tells of each whether a waiter has reserved in it.
	Free     []int
	Reserved []bool
}

// Admit decides who in the line may take slots now. It is pure, and all
// instances that see the same rooms and line decide the same. Safety does not
// rest on it: each grant is committed under compares of its own. Order does.
//
// For each waiter, first to last:
//  1. It takes nothing and keeps nothing if it can't be granted as things are,
//     or if it has yielded.
//  2. If it fits in all its pools, its slots are taken: it is granted if it is
//     ours, and else keeps its place. One that is exclusive closes its pools to
//     those behind it.
//  3. Else, if it reserves and no waiter before it has reserved in one of its
//     pools, its slots are kept together: what is free now and what becomes so
//     go to nobody behind it.
func Admit(rooms []Room, line []*Waiting) Decision {
	free, reserved := freeRoom(rooms), make([]bool, len(rooms))
	d := Decision{Free: free, Reserved: reserved}
	if len(line) == 0 || !anyFree(free) {
		return d
	}
	for i, w := range line {
		if w.Yielded || !possible(rooms, w) {
			continue
		}
		switch {
		case fits(free, w):
			take(free, w)
			if w.Exclusive {
				closeRooms(free, w)
			}
			if w.Mine {
				d.Grants = append(d.Grants, i)
			} else {
				d.Fits = append(d.Fits, i)
			}
			if !anyFree(free) {
				return d // nobody behind fits
			}
		case w.Reserve && !anyReserved(reserved, w):
			take(free, w)
			for _, n := range w.Needs {
				reserved[n.Room] = true
			}
		}
	}
	return d
}

// freeRoom is what each room has left; below 0 after a limit was lowered.
func freeRoom(rooms []Room) []int {
	free := make([]int, len(rooms))
	for i, r := range rooms {
		free[i] = r.Limit - r.Used
		if r.Limit == Unlimited {
			free[i] = unlimitedCapacity
		}
	}
	return free
}

// anyFree tells whether some room has a slot left.
func anyFree(free []int) bool {
	for _, n := range free {
		if n > 0 {
			return true
		}
	}
	return false
}

// possible tells whether the waiter could be granted if nothing else were held.
func possible(rooms []Room, w *Waiting) bool {
	for _, n := range w.Needs {
		r := rooms[n.Room]
		if !r.Open || r.Limit != Unlimited && n.N > r.Limit {
			return false
		}
	}
	return true
}

func fits(free []int, w *Waiting) bool {
	for _, n := range w.Needs {
		if free[n.Room] < n.N {
			return false
		}
	}
	return true
}

func take(free []int, w *Waiting) {
	for _, n := range w.Needs {
		free[n.Room] -= n.N
	}
}

// closeRooms leaves nothing for those behind.
func closeRooms(free []int, w *Waiting) {
	for _, n := range w.Needs {
		free[n.Room] = min(free[n.Room], 0)
	}
}

func anyReserved(reserved []bool, w *Waiting) bool {
	for _, n := range w.Needs {
		if reserved[n.Room] {
			return true
		}
	}
	return false
}
