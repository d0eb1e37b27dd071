package server

import (
	"context"
	"testing"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

func TestALimiterBoundsAllAndEach(t *testing.T) {
	l := NewLimiter(LimiterConfig{What: "streams", Todo: "close some", Total: 3, Each: 2})
	wantRefused := func(key, message string) {
		t.Helper()
		if _, err := l.Enter(key); problem.CodeOf(err) != problem.TooManyRequests || err.Error() != message {
			t.Errorf("%v, want %s", err, message)
		}
	}
	leave, err := l.Enter("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if _, err := l.Enter(key); err != nil {
			t.Fatal(err)
		}
		if key == "a" {
			wantRefused("a", "2 streams of a are open, which is the most that is allowed for one identity: close some")
		}
	}
	wantRefused("c", "3 streams are open, which is the most that is allowed: close some")
	leave()
	if _, err := l.Enter("a"); err != nil || l.Open() != 3 {
		t.Errorf("%v with %d open", err, l.Open())
	}
}

func TestWhatCountsAsManyTakesAsManyPlaces(t *testing.T) {
	l := NewLimiter(LimiterConfig{What: "claims", Todo: "wait", Total: 10, Each: 6})
	leave, err := l.EnterAs("a", 4)
	if err != nil || l.Open() != 4 {
		t.Fatalf("%v with %d open", err, l.Open())
	}
	if _, err := l.EnterAs("a", 3); problem.CodeOf(err) != problem.TooManyRequests {
		t.Errorf("7 of 6: %v", err)
	}
	if _, err := l.EnterAs("b", 6); err != nil {
		t.Error(err)
	}
	if _, err := l.Enter("c"); problem.CodeOf(err) != problem.TooManyRequests {
		t.Errorf("11 of 10: %v", err)
	}
	leave()
	if _, err := l.EnterAs("c", 4); err != nil || l.Open() != 10 {
		t.Errorf("%v with %d open", err, l.Open())
	}
}

func TestRequestsCountForTheirIdentityOrAddress(t *testing.T) {
	from := func(address string, id access.Identity) context.Context {
		ctx := context.WithValue(t.Context(), addrKey{}, address)
		return access.With(ctx, func() access.Identity { return id })
	}
	anonymous := access.Identity{Kind: access.Anonymous}
	for want, all := range map[string][]context.Context{
		"user:alice": {from("", access.Identity{Kind: access.User, Name: "alice"})},
		"token:ci":   {from("10.0.0.1:42", access.Identity{Kind: access.TokenBearer, Name: "ci"})},
		"10.0.0.1":   {from("10.0.0.1:42", anonymous)},
		// One host can have as many addresses as it likes.
		"localhost":         {from("127.0.0.1:42", anonymous), from("127.1.2.3:42", anonymous), from("[::1]:42", anonymous)},
		"2001:db8:0:1::/64": {from("[2001:db8:0:1::1]:42", anonymous), from("[2001:db8:0:1:2::]:42", anonymous)},
		"anonymous":         {from("", anonymous)},
	} {
		for _, ctx := range all {
			if got := KeyOf(ctx); got != want {
				t.Errorf("%s counts for %s, want %s", AddressOf(ctx), got, want)
			}
		}
	}
}
