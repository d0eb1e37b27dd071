package slots

// ceiling looks for the largest number c, at most the limit, such that c and the slots that are held at or above
// it are at most the limit. It is 0 if there is none. Each try needs one count. The tries become smaller, and none is
// below the result: if c is the result, and a try t is at least c, then what is held at or above t is at most what is
// held at or above c, and the next try, limit less that, is at least c.
type ceiling struct {
	limit int
	try   int
	known bool
}

// ceilingOf begins to look for the ceiling under a limit.
func ceilingOf(limit int) ceiling { return ceiling{limit: limit, try: limit, known: limit == 0} }

// counted takes note that so many slots are held at or above the number that is tried.
func (c *ceiling) counted(held int) {
	next := max(0, c.limit-held)
	if c.known = next >= c.try; !c.known {
		c.try = next
	}
	if c.try == 0 {
		c.known = true
	}
}
