package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/access"
	units "github.com/berthhq/berth/internal/text"
)

// Each of these reads the text of one kind of value, and reports whether it is
// allowed. The table says what it must be.

// year is the longest duration that is taken for meant.
const year = 365 * 24 * time.Hour

func parseDuration(text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0 && d <= year
}

func durationFrom(least, most time.Duration) func(string) (time.Duration, bool) {
	return func(text string) (time.Duration, bool) {
		d, err := time.ParseDuration(text)
		return d, err == nil && d >= least && d <= most
	}
}

func orZero(parse func(string) (time.Duration, bool)) func(string) (time.Duration, bool) {
	return func(text string) (time.Duration, bool) {
		if d, err := time.ParseDuration(text); err == nil && d == 0 {
			return 0, true
		}
		return parse(text)
	}
}

func parseSwitch(text string) (bool, bool) { return text == "true", text == "true" || text == "false" }

func oneOf(allowed ...string) func(string) (string, bool) {
	return func(text string) (string, bool) { return text, slices.Contains(allowed, text) }
}

func optional(parse func(string) (string, bool)) func(string) (string, bool) {
	return func(text string) (string, bool) {
		if text == "" {
			return "", true
		}
		return parse(text)
	}
}

// pathLimit is what Linux takes for a path.
const pathLimit = 4096

func parsePath(text string) (string, bool) {
	return text, len(text) < pathLimit && !strings.ContainsRune(text, 0)
}

func parseSomePath(text string) (string, bool) {
	path, ok := parsePath(text)
	return path, ok && path != ""
}

const (
	// socketLimit is the longest path of a unix socket that a sidecar can listen at, connectLimit the
	// longest that a client can connect to.
	socketLimit, connectLimit = 99, 107
	// unixScheme begins the address of a unix socket.
	unixScheme = "unix://"
)

func parseSocket(text string) (string, bool) { return text, isSocket(text, socketLimit) }

func isSocket(text string, most int) bool {
	path, ok := parsePath(text)
	return ok && filepath.IsAbs(path) && len(path) <= most
}

// Mode is the permissions of a file.
type Mode uint32

// String returns the mode in octal, as it is written in a settings file.
func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// parseMode reads the modes with which users can connect to a socket: they need the right
// to write, and execution means nothing.
func parseMode(text string) (Mode, bool) {
	for _, m := range []Mode{0o600, 0o660, 0o666} {
		if text == m.String() {
			return m, true
		}
	}
	return 0, false
}

// Size is a number of bytes.
type Size int64

// String returns the size as it is written in a settings file, such as 256MiB.
func (s Size) String() string { return units.Size(int64(s)) }

func sizeFrom(least, most Size) func(string) (Size, bool) {
	return func(s string) (Size, bool) {
		n, ok := units.ParseSize(s)
		return Size(n), ok && Size(n) >= least && Size(n) <= most
	}
}

func numberFrom(least, most int) func(string) (int, bool) {
	return func(text string) (int, bool) {
		n, err := strconv.Atoi(text)
		return n, err == nil && units.IsDecimal(text) && n >= least && n <= most
	}
}

// groupName matches what groupadd accepts, and numbers.
var groupName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,30}\$?|[0-9]{1,10})$`)

func parseGroup(text string) (string, bool) { return text, groupName.MatchString(text) }

var (
	// Lengths are checked separately: compiling long counted repetitions would delay every
	// command by milliseconds.
	hostName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	dnsName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	prefixText = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+/$`)
	tokenText  = regexp.MustCompile(`^[!-~]+$`)
)

func parseHost(text string) (string, bool) {
	name := strings.ToLower(text)
	return name, len(name) <= 63 && hostName.MatchString(name)
}

func parsePrefix(text string) (string, bool) {
	prefix := strings.TrimSuffix(text, "/") + "/"
	return prefix, len(prefix) <= 200 && prefixText.MatchString(prefix)
}

// parseRules splits rules. What they mean is checked once all settings are known.
func parseRules(text string) ([]string, bool) {
	rules := strings.Split(text, ",")
	for i, rule := range rules {
		if rules[i] = strings.TrimSpace(rule); rules[i] == "" {
			return nil, false
		}
	}
	return rules, true
}

// parseIdentities reads patterns of identities.
func parseIdentities(text string) ([]string, bool) {
	list, ok := parseRules(text)
	_, err := access.ParsePatterns(list)
	return list, ok && err == nil
}

func parseToken(text string) (Secret, bool) {
	return Secret(text), text == "" || len(text) >= 16 && len(text) <= 256 && tokenText.MatchString(text)
}

func parseSecret(text string) (Secret, bool) {
	return Secret(text), !strings.ContainsAny(text, "\r\n\x00")
}

func parseUser(text string) (string, bool) {
	name, _, _ := strings.Cut(text, ":")
	_, ok := parseSecret(text)
	return text, ok && (name != "" || text == "")
}

// parseAddress reads "host:port". No host is all addresses of the machine.
func parseAddress(text string) (string, bool) {
	host, port, err := net.SplitHostPort(text)
	return text, err == nil && isPort(port) && (host == "" || isHost(host))
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

func isHost(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || len(text) <= 253 && dnsName.MatchString(text)
}

// parseEtcdListen reads "host:port" without a name that would have to be looked up.
func parseEtcdListen(text string) (string, bool) {
	addr, ok := parseAddress(text)
	host, _, _ := net.SplitHostPort(addr)
	return addr, ok && (host == "localhost" || net.ParseIP(host) != nil)
}

// isLoopback reports whether only this machine reaches the address.
func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func parseEndpoints(text string) ([]string, bool) {
	var all []string
	for _, item := range strings.Split(text, ",") {
		item = strings.TrimSpace(item)
		if !isEndpoint(item) || slices.Contains(all, item) {
			return nil, false
		}
		all = append(all, item)
	}
	return all, true
}

// isEndpoint takes an address with or without a scheme, as etcd's client does.
func isEndpoint(text string) bool {
	if path, ok := strings.CutPrefix(text, unixScheme); ok {
		return isSocket(path, connectLimit)
	}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		return (scheme == "http" || scheme == "https") && isHostPort(rest)
	}
	return isHostPort(text)
}

// isHostPort takes an address to connect to: it needs a host and a real port.
func isHostPort(text string) bool {
	addr, ok := parseAddress(text)
	host, port, _ := net.SplitHostPort(addr)
	return ok && host != "" && strings.Trim(port, "0") != ""
}

func parseSidecar(text string) (string, bool) {
	if text == "" {
		return "", true
	}
	if path, ok := strings.CutPrefix(text, unixScheme); ok {
		return text, isSocket(path, connectLimit)
	}
	text = strings.TrimSuffix(text, "/")
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return text, false
	}
	return text, text == u.Scheme+"://"+u.Host && (isHostPort(u.Host) || isHost(u.Host))
}
