package api

import "testing"

// reads returns a function that reads an example strictly.
func reads[T any]() func(string) error {
	d := NewDecoder[T](false)
	return func(text string) error {
		_, err := d.Decode([]byte(text))
		return err
	}
}

func TestExamplesAreReadAsWhatTheyAre(t *testing.T) {
	types := map[string]struct{ request, answer func(string) error }{
		"claim":             {reads[ClaimRequest](), reads[Claim]()},
		"list-claims":       {nil, reads[List[Claim]]()},
		"get-claim":         {nil, reads[Claim]()},
		"renew-claim":       {reads[RenewRequest](), reads[Claim]()},
		"revoke-claim":      {reads[RevokeRequest](), reads[Revocation]()},
		"list-pools":        {nil, reads[List[Pool]]()},
		"get-pool":          {nil, reads[PoolDetail]()},
		"put-pool":          {reads[PoolChange](), reads[Pool]()},
		"patch-pool":        {reads[PoolChange](), nil},
		"submit-run":        {reads[RunRequest](), reads[Run]()},
		"list-runs":         {nil, reads[RunList]()},
		"get-run":           {nil, reads[Run]()},
		"cancel-run":        {reads[RunCancel](), nil},
		"retry-run":         {reads[RunRetry](), nil},
		"start-run":         {reads[RunStart](), nil},
		"finish-run":        {reads[RunFinish](), nil},
		"list-steps":        {nil, reads[StepList]()},
		"get-step-instance": {nil, reads[StepWork]()},
		"take-step":         {reads[StepTake](), nil},
		"renew-step":        {reads[StepRenewal](), nil},
		"finish-step":       {reads[StepFinish](), nil},
		"retry-step":        {reads[StepRetry](), nil},
	}
	for op, e := range examples {
		of := types[op]
		if (of.request == nil) != (e.request == "") || (of.answer == nil) != (e.answer == "") {
			t.Errorf("%s: its types are not known", op)
			continue
		}
		if of.request != nil {
			if err := of.request(e.request); err != nil {
				t.Errorf("%s: the request: %v", op, err)
			}
		}
		if of.answer != nil {
			if err := of.answer(e.answer); err != nil {
				t.Errorf("%s: the answer: %v", op, err)
			}
		}
	}
}
