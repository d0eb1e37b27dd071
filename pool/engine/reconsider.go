package engine

// Reconsider has the engine try waiting claims again: a place was given back.
func (e *Engine) Reconsider() { e.inbox.put(func() {}) }
