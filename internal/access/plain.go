package access

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// CheckPlain returns why a token is not to be sent to a server at an address: it would go in plain
// text to another host, and all on the way could read it.
func CheckPlain(addr string) error {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != "http" || isLocal(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("a token is not sent to %s over plain HTTP, where others can read it: use https://, or --insecure (BERTH_INSECURE=true) in a network that only you can read", u.Host)
}

// isLocal reports whether a host, as in a URL, is this one.
func isLocal(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
