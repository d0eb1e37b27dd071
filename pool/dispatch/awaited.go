package dispatch

// awaited is keys whose put or deletion was sent, and that the view does not show yet: nothing more is done about them.
// The value is the revision at which the view shows it, or 0 while there is no answer.
type awaited map[string]int64

// sent records that something was sent about a key.
func (a awaited) sent(key string) { a[key] = 0 }

// answered records the revision at which it was carried out, or after which it can't be; with revision 0 that it was not.
func (a awaited) answered(key string, revision int64) {
	if a[key] = revision; revision == 0 {
		delete(a, key)
	}
}

// waits reports whether a view at a revision does not show what has become of a key.
func (a awaited) waits(key string, revision int64) bool {
	at, ok := a[key]
	return ok && (at == 0 || at > revision)
}

// age forgets what a view at a revision shows.
func (a awaited) age(revision int64) {
	for key, at := range a {
		if at > 0 && at <= revision {
			delete(a, key)
		}
	}
}
