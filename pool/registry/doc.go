// Package registry reads and changes the specs of pools in etcd, and has the version of the layout of the data there.
//
// A [Registry] has the specs: each change compares the one that it was made from. A [Layout] has the version: data of
// another one is refused before anything else is read, and older data is upgraded once, while no process uses it.
package registry
