package coordinator

import (
	"context"
	"slices"

	"github.com/berthhq/berth/internal/store"
)

// Candidates returns who stands for the coordinator's part, the one that leads
// first. Of one that can't be read there is the term alone.
func Candidates(ctx context.Context, b store.Backend, keys store.Keys) ([]Candidate, error) {
	s, err := store.ReadAll(ctx, b, keys.Coordinators())
	if err != nil {
		return nil, store.Problem("the coordinator could not be asked for", err)
	}
	all := []Candidate{}
	for _, kv := range s.KVs {
		if c, _ := decodeCandidate(keys, kv); c.Term > 0 {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Candidate) int { return int(a.Term - b.Term) })
	return all, nil
}
