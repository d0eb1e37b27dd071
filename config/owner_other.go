//go:build !unix

package config

// checkOwner returns nil: there are no owners here.
func checkOwner(string) error { return nil }
