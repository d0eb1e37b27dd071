package dispatch

// Follower is an instance that shall dispatch after one that ends. The zero value is none.
type Follower struct{ Host, Instance string }

// Follower returns the other instance with the youngest demand, which ends last as a rule. It is none if no other has demands.
func (d *Dispatcher) Follower() (f Follower) {
	youngest := int64(0)
	for name, b := range d.batches {
		if b.created > youngest && (instance{name.Host, name.Instance}) != d.self {
			f, youngest = Follower{name.Host, name.Instance}, b.created
		}
	}
	return f
}
