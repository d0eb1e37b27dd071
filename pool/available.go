package pool

// Available reports whether the place is taken already, or could be now. A nil one always is.
func (p *Place) Available() bool { return p.available() }
