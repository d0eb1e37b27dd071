package engine

import (
	"time"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
)

// waits notifies the observer of a request that has to wait.
func (e *entry) waits(now time.Time) {
	if o := e.request.Observer; o != nil {
		o.Waits(now)
	}
}

// observe notifies the observers of the requests that a transaction has granted, before they are answered. Results are what has
// become of claims since then.
func (r *requests) observe(results []owner.Result, w pool.Write) {
	for _, res := range results {
		switch {
		case res.Outcome == owner.Released && res.Revision == w.Revision:
			w.Releases++
		case res.Outcome == owner.Granted && res.Claim.Fence().Revision() == w.Revision:
			w.Grants++
			if e := r.of[res.Claim]; e != nil && e.request.Observer != nil {
				w.Observers = append(w.Observers, e.request.Observer)
			}
		}
	}
	if len(w.Observers) > 0 {
		w.Observers[0].Written(w)
	}
}
