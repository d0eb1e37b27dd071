package pool

import (
	"github.com/berthhq/berth/internal/store"
)

// TakeOver is a request for a claim that another instance holds until it is taken over:
// see [Request.Bridge].
type TakeOver struct {
	// ID and Fence name the claim, and Slots has its pools.
	ID    string
	Fence store.Fence
	Slots map[string]int
	// Holder to record from now on. Host and Instance are filled in by the engine.
	Holder Holder
	// Extra goes into the transaction by which the claim changes hands.
	Extra store.Extra
}

// Validate refuses what can't be asked for, whatever claims there are.
func (h *TakeOver) Validate() error {
	if err := ValidateID(h.ID); err != nil {
		return err
	}
	if err := ValidateSlots(h.Slots); err != nil {
		return err
	}
	if err := h.Holder.validate(); err != nil {
		return err
	}
	return ValidateExtra(h.Extra)
}
