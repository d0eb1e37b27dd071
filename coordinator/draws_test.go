package coordinator

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// draws are what happens in a random test, from a seed. Several may draw at once.
type draws struct {
	mu     sync.Mutex // guards what follows
	rnd    *rand.Rand
	faults bool
}

func newDraws(seed uint64) *draws {
	return &draws{rnd: rand.New(rand.NewPCG(seed, 7)), faults: true}
}

// draw is a number from 0 to n less 1.
func (d *draws) draw(n int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Int64N(n)
}

// calm ends the faults.
func (d *draws) calm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = false
}

func (d *draws) calmed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.faults
}

// fault loses, delays or refuses some calls.
func (d *draws) fault(storetest.Call) storetest.Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.faults || d.rnd.IntN(6) > 0 {
		return storetest.Fault{}
	}
	switch d.rnd.IntN(4) {
	case 0:
		return storetest.Fault{LoseAnswer: true}
	case 1:
		return storetest.Fault{Drop: true}
	case 2:
		return storetest.Fault{Delay: time.Duration(d.rnd.Int64N(int64(5 * time.Second)))}
	}
	return storetest.Fault{LoseAnswer: true, Err: store.ErrUnavailable}
}
