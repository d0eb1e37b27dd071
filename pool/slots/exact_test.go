package slots

import (
	"testing"

	"pgregory.net/rapid"
)

// A pool that is followed exactly agrees with a plain list of its numbers.
func TestExactAgreesWithAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := NewExact()
		spec := Spec{Limit: rapid.SampledFrom([]int{1, 3, 8, 300, 600}).Draw(t, "limit"), Revision: 1, Since: 1}
		e.SetSpec(spec)
		held, blocks, lent := map[int]bool{}, []Held(nil), []Held(nil)
		n := rapid.IntRange(1, 60).Draw(t, "steps")
		for range n {
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1: // offer
				size := rapid.IntRange(1, 40).Draw(t, "size")
				h, ok := e.Choose(size, size > 4, uint32(rapid.IntRange(0, 3).Draw(t, "hash")), 7)
				if !ok {
					continue
				}
				if h.Slots() != size {
					t.Fatalf("%d slots are chosen, want %d", h.Slots(), size)
				}
				for number := range h.all() {
					for _, o := range append(lent, blocks...) {
						for other := range o.all() {
							if other == number {
								t.Fatalf("number %d is offered twice", number)
							}
						}
					}
					if held[number] || number >= e.Ceiling() {
						t.Fatalf("number %d is held, or at or above the ceiling %d", number, e.Ceiling())
					}
				}
				e.Lend(h)
				lent = append(lent, h)
			case 2, 3: // the offer is committed or declined
				if len(lent) == 0 {
					continue
				}
				h := lent[0]
				lent = lent[1:]
				free := true
				for number := range h.all() {
					free = free && !e.has(number)
				}
				if free && rapid.Bool().Draw(t, "commit") {
					for _, number := range h.Numbers {
						e.Add(number)
						held[number] = true
					}
					for _, b := range h.Blocks {
						e.AddBlock(b)
						blocks = append(blocks, Held{Blocks: []Block{b}})
					}
				}
				e.Return(h)
			case 4: // a release
				if len(blocks) > 0 && rapid.Bool().Draw(t, "block") {
					b := blocks[0].Blocks[0]
					e.RemoveBlock(b.Area, b.Name)
					blocks = blocks[1:]
					continue
				}
				for number := range held {
					e.Remove(number)
					delete(held, number)
					break
				}
			case 5: // another takes a number, which may be lent
				number := rapid.IntRange(0, spec.Limit-1).Draw(t, "number")
				for _, h := range blocks {
					for other := range h.all() {
						if other == number {
							number = -1
						}
					}
				}
				if number >= 0 {
					e.Add(number)
					held[number] = true
				}
			case 6:
				spec.Revision++
				spec.Limit = rapid.IntRange(max(1, spec.Limit-5), spec.Limit+5).Draw(t, "limit")
				spec.Since = spec.Revision
				e.SetSpec(spec)
			}
			used, above := map[int]bool{}, 0
			all := func(h Held) {
				for number := range h.all() {
					used[number] = true
				}
			}
			for number := range held {
				used[number] = true
			}
			for _, h := range blocks {
				all(h)
			}
			for number := range used {
				if number >= e.Ceiling() {
					above++
				}
			}
			if e.Held() != len(used) {
				t.Fatalf("%d slots are held, want %d", e.Held(), len(used))
			}
			if c := e.Ceiling(); c+above > spec.Limit && c > 0 {
				t.Fatalf("ceiling %d, %d held above it, limit %d", c, above, spec.Limit)
			}
			for _, h := range lent {
				all(h)
			}
			if e.Used() != len(used) {
				t.Fatalf("%d slots are used, want %d", e.Used(), len(used))
			}
		}
	})
}

// Slots that are free are found, but for those of areas in which a block is lent.
func TestExactFindsWhatIsFree(t *testing.T) {
	e := NewExact()
	e.SetSpec(Spec{Limit: 300, Revision: 3, Since: 3})
	block, ok := e.Choose(100, true, 1, 9)
	if !ok || len(block.Blocks) != 1 || block.Areas[0] != (Area{0, 9}) || block.Spec != 3 {
		t.Fatalf("%+v", block)
	}
	e.Lend(block)
	if h, ok := e.Choose(50, true, 2, 9); ok {
		t.Errorf("%+v is of an area in which a block is lent", h)
	}
	if h, _ := e.Choose(44, true, 2, 9); h.Blocks[0].Area != 1 {
		t.Errorf("%+v", h)
	}
	few, _ := e.Choose(3, false, 2, 9)
	if few.Numbers[0] != 256 {
		t.Errorf("%+v is not of the area without a block", few)
	}
	e.Return(block)
	if h, ok := e.Choose(300, true, 2, 9); !ok || len(h.Blocks) != 2 {
		t.Errorf("%+v", h)
	}
	e.SetSpec(Spec{Limit: Unlimited, Revision: 4, Since: 4})
	one, _ := e.Choose(5, false, 1, 9)
	e.Lend(one)
	two, ok := e.Choose(5, false, 1, 9)
	if !ok || one.Blocks[0].Name != 64 || two.Blocks[0].Name != 65 || len(two.Areas) != 0 {
		t.Errorf("%+v, %+v", one, two)
	}
}
