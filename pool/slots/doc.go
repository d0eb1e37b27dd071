// Package slots decides which slots of a pool a claim takes, and under which conditions.
//
// The slots of a pool with a limit are the numbers from 0 to limit-1. A claim of a few slots takes a key in etcd
// for each number. A claim of many takes blocks: keys that each hold numbers of one area, a range of numbers. In a
// pool without a limit a block holds a count. etcd's compares make sure that no number is held twice, by keys
// and blocks together; so the number of slots in use never exceeds the limit, whatever an instance remembers:
//
//   - a slot key is put if it is absent, and if no block was created in its area since the revision at which the
//     blocks of the area are known, none of which holds the number;
//   - a block is put if no slot key is within its runs, and the same is true of its area;
//   - both are put if the spec is that which the limit is known from.
//
// After a limit was lowered, numbers above it may still be held. Then a claim takes only numbers below the ceiling
// of the pool: the largest number such that it and the slots that are held at or above it are at most the limit.
// No process takes a number at or above the largest ceiling that any has known under that limit, so what is held
// there only becomes less, and what is held below it is distinct.
//
// A [Pool] is what one instance remembers of a pool. It has no clock, connection or goroutine: it is shown what
// was read and what was committed, and returns what to try next. The numbers that other instances hold are only a
// hint, since each number that is taken is compared.
package slots
