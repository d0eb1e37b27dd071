package access

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

// attempts are those of a test, at a time that it sets.
type attempts struct {
	t *testing.T
	Attempts
	now    time.Time
	tokens Tokens
}

func newAttempts(t *testing.T) *attempts {
	t.Helper()
	a := &attempts{t: t, now: time.Unix(1_000_000, 0)}
	if err := a.tokens.Add(Token{Name: "ci", Hash: hashOf("right")}, a.now); err != nil {
		t.Fatal(err)
	}
	return a
}

// want has a token be sent from somewhere, and wants the answer: empty if it is right.
func (a *attempts) want(code problem.Code, secret, from string) {
	a.t.Helper()
	got, err := a.Find(a.tokens, secret, from, a.now)
	if code != "" && problem.CodeOf(err) != code || code == "" && (err != nil || got.Name != "ci") {
		a.t.Fatalf("%s from %s: %q, %v; want %q", secret, from, got.Name, err, code)
	}
	if code != "" && got.Name != "" {
		a.t.Fatalf("%s from %s: %v, and yet it names %q", secret, from, err, got.Name)
	}
}

func TestGuessesAreSlowedDownByAddress(t *testing.T) {
	a := newAttempts(t)
	a.want("", "right", "10.0.0.9:1")
	a.now = a.now.Add(59 * time.Second) // the minute is that of the first wrong one
	for range 10 {
		a.want(problem.Unauthorized, "wrong", "10.0.0.1:1234")
	}
	a.want(problem.TooManyRequests, "wrong", "10.0.0.1:4321") // from any port
	a.want(problem.TooManyRequests, "right", "10.0.0.1:4321") // or a guess would be answered
	a.want(problem.TooManyRequests, "right", "[::ffff:10.0.0.1]:1")
	a.want("", "right", "10.0.0.2:1")
	a.want(problem.Unauthorized, "wrong", "10.0.0.2:1")
	a.now = a.now.Add(59 * time.Second)
	a.want(problem.TooManyRequests, "right", "10.0.0.1:1")
	a.now = a.now.Add(time.Second)
	a.want("", "right", "10.0.0.1:1")

	for i := range 10 { // a network is one address
		a.want(problem.Unauthorized, "wrong", fmt.Sprintf("[2001:db8::%x]:1", i+1))
	}
	a.want(problem.TooManyRequests, "right", "[2001:db8::ff]:1")
	a.want("", "right", "[2001:db8:0:1::1]:1")

	for i := range 10 { // a process has all addresses of loopback
		a.want(problem.Unauthorized, "wrong", fmt.Sprintf("127.0.0.%d:1", i+1))
	}
	a.want(problem.TooManyRequests, "right", "127.1.2.3:1")
	a.want(problem.TooManyRequests, "right", "[::1]:1")
}

func TestATokenThatWasUsedFromAnAddressIsNotSlowedDown(t *testing.T) {
	a := newAttempts(t)
	a.want("", "right", "10.0.0.1:1")
	for range 3 * 60 { // longer than it takes to forget, with a use per minute
		for i := range 20 {
			_, err := a.Find(Tokens{}, "wrong", "10.0.0.1:3", a.now)
			if want := map[bool]problem.Code{true: problem.Unauthorized, false: problem.TooManyRequests}[i < 10]; problem.CodeOf(err) != want {
				t.Fatalf("guess %d: %v", i, err)
			}
		}
		a.want("", "right", "10.0.0.1:2")
		a.now = a.now.Add(time.Minute)
	}
	for range 10 {
		_, _ = a.Find(Tokens{}, "wrong", "10.0.0.1:3", a.now)
	}
	a.want("", "right", "10.0.0.1:2")
	a.now = a.now.Add(3 * time.Hour)
	a.want(problem.Unauthorized, "wrong", "10.0.0.1:3")
	a.now = a.now.Add(3 * time.Hour)
	for range 10 {
		a.want(problem.Unauthorized, "wrong", "10.0.0.1:3")
	}
	a.want(problem.TooManyRequests, "right", "10.0.0.1:2") // it was forgotten
}

func TestGuessesFromEverywhereAreSlowedDownTogether(t *testing.T) {
	a := newAttempts(t)
	a.want("", "right", "10.0.0.1:1")
	for i := range 1000 {
		a.want(problem.Unauthorized, "wrong", fmt.Sprintf("10.1.%d.%d:1", i/250, i%250))
	}
	a.want(problem.TooManyRequests, "wrong", "10.2.0.1:1")
	a.want(problem.TooManyRequests, "right", "10.2.0.1:1")
	a.want("", "right", "10.0.0.1:1")
	a.now = a.now.Add(time.Minute)
	a.want("", "right", "10.2.0.1:1")
}

func TestWhatIsKeptOfAttemptsIsBounded(t *testing.T) {
	a := newAttempts(t)
	for i := range 20_000 {
		a.want("", "right", fmt.Sprintf("10.%d.%d.1:1", i/250, i%250))
	}
	for i := range 20_000 {
		_, _ = a.Find(Tokens{}, "wrong", fmt.Sprintf("10.%d.%d.2:1", i/250, i%250), a.now)
	}
	if n := len(a.wrong) + len(a.used) + len(a.usedBefore); n > 2*4096+1000 {
		t.Errorf("%d addresses are kept", n)
	}
}

func TestATokenThatHasExpiredIsNoGuess(t *testing.T) {
	a := newAttempts(t)
	token, secret, err := NewToken("ci", nil, a.now, a.now.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var ts Tokens
	if err := ts.Add(token, a.now); err != nil {
		t.Fatal(err)
	}
	a.now = a.now.Add(time.Second)
	for range 100 {
		if _, err := a.Find(ts, secret, "10.0.0.1:1", a.now); problem.CodeOf(err) != problem.Unauthorized {
			t.Fatal(err)
		}
	}
	a.want("", "right", "10.0.0.1:1")
}
