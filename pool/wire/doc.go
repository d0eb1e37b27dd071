// Package wire spells the keys of pools in etcd, and encodes and decodes their values, in the layout 2: slots that
// have numbers.
//
// All slots of a claim are in its slot keys and blocks, put in one revision and on one lease. One of them, the main key,
// has the record of the claim: its holder, and the list of its keys; the others name the main key. Values are JSON
// with the version in the field v. What decides about slots is outside of the record, so that the record is decoded
// only for those who want to see it.
//
// Nothing is guessed: a key or a value that this package does not write is an error that names the key.
package wire
