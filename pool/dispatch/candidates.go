package dispatch

import "github.com/berthhq/berth/pool/wire"

// Candidates returns the other instances with demands, any of which can follow this one.
func (d *Dispatcher) Candidates() (all []Candidate) {
	index := map[instance]int{}
	for name, b := range d.batches {
		of := name.instance
		if of == d.self {
			continue
		}
		i, ok := index[of]
		if !ok {
			i = len(all)
			index[of] = i
			all = append(all, Candidate{Follower: Follower{of.host, of.name}, Kind: wire.Command})
		}
		all[i].Youngest = max(all[i].Youngest, b.created)
	}
	return all
}
