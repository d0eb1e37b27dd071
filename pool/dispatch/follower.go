package dispatch

// Follower is an instance that shall dispatch after one that ends. The zero value is none.
type Follower struct{ Host, Instance string }

// Follower returns the other instance with the youngest demand, which ends last as a rule. It is none if no other has demands.
func (d *Dispatcher) Follower() (f Follower) {
	youngest := int64(0)
	for name, b := range d.batches {
		if name.instance != d.self && b.created > youngest {
			f, youngest = Follower{name.host, name.instance.name}, b.created
		}
	}
	return f
}
