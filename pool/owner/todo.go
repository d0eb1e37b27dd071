package owner

import "slices"

// todo is what is to be done or reported, in the order in which it came. It is taken as a whole: what can't be done yet is added
// again.
type todo[T any] struct{ list []T }

// add adds something.
func (t *todo[T]) add(what ...T) { t.list = append(t.list, what...) }

// take returns all, and forgets it.
func (t *todo[T]) take() []T {
	all := t.list
	t.list = nil
	return all
}

// remove removes what a function is true of.
func (t *todo[T]) remove(is func(T) bool) { t.list = slices.DeleteFunc(t.list, is) }

// len returns how much there is to be done.
func (t *todo[T]) len() int { return len(t.list) }
