// Package registry reads and changes the specs of pools in etcd.
package registry
