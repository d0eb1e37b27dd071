package access

import (
	"net/netip"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

const (
	// AttemptsWindow is the time within which wrong tokens are counted: the longest that one
	// has to wait.
	AttemptsWindow = time.Minute
	// attemptsFrom and attemptsInAll are how many wrong tokens are answered within it from one
	// address and from all.
	attemptsFrom, attemptsInAll = 10, 1000
	// usedFor is how long at least a token counts as used from an address, unless there are more
	// than maxUsed such pairs.
	usedFor, maxUsed = time.Hour, 4096
)

// Attempts slows down the guessing of tokens: who has shown too many wrong ones has to wait.
//
// While an address has to wait, its right tokens wait too: if they did not, the answers would
// still tell a right guess from a wrong one. Only a token that was used from the address before
// does not wait. So one client with a wrong token, behind a proxy or on a host of many users,
// keeps none of its neighbours from their work, and a new one for a minute at most. A token that
// has expired is no guess, and does not count.
//
// It keeps at most attemptsInAll addresses, and 2 * maxUsed pairs of an address and a token. The
// zero value is ready.
type Attempts struct {
	// mu guards what follows.
	mu    sync.Mutex
	begun time.Time // of the window: when the first wrong token came
	wrong map[string]int
	inAll int
	// used are the tokens that were used lately, and before that.
	used, usedBefore map[usedToken]bool
	turned           time.Time // when used became usedBefore
}

// usedToken is the hash of a token that was used from an address.
type usedToken struct{ from, hash string }

// Find returns the token with a secret that was sent from a remote address, as [Tokens.Find]
// does. For an address that has to wait the error is a problem of the code too_many_requests.
func (a *Attempts) Find(ts Tokens, secret, remote string, now time.Time) (Token, error) {
	t, err := ts.Find(secret, now)
	from := SourceOf(remote)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now)
	one := usedToken{from, t.Hash}
	if a.used[one] {
		return t, err
	}
	if !a.usedBefore[one] && (a.wrong[from] >= attemptsFrom || a.inAll >= attemptsInAll) {
		return Token{}, problem.New(problem.TooManyRequests, "too many wrong tokens were sent, and guessing is slowed down: try again in a minute with the right one")
	}
	switch {
	case t.Hash == "":
		if a.inAll == 0 {
			a.begun = now
		}
		a.wrong[from]++
		a.inAll++
	case err == nil:
		a.used[one] = true
	}
	return t, err
}

// turn forgets what is too old.
func (a *Attempts) turn(now time.Time) {
	if since := now.Sub(a.begun); a.wrong == nil || since >= AttemptsWindow || since < 0 {
		a.begun, a.wrong, a.inAll = now, map[string]int{}, 0
	}
	if a.used == nil || now.Sub(a.turned) >= usedFor || len(a.used) >= maxUsed {
		a.used, a.usedBefore, a.turned = map[usedToken]bool{}, a.used, now
	}
}

// SourceOf returns what counts as one address: that of IPv4, the network of 64 bits of IPv6, of
// which a host can have all addresses, and "localhost" for those of loopback, of which each
// process of this host has all.
func SourceOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.IsLoopback() {
		return "localhost"
	}
	if addr.Is6() {
		if net, err := addr.Prefix(64); err == nil {
			return net.String()
		}
	}
	return addr.String()
}
