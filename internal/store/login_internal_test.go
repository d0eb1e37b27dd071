package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Members that know nothing of a login that another one has given out, say.
func TestALoginThatIsGoodForNothingIsRepeatedMoreAndMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		l := newLogin(func(context.Context) (string, error) { made++; return fmt.Sprint(made), nil })
		defer l.end()
		for begin := time.Now(); time.Since(begin) < 10*time.Minute; {
			token, err := l.get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range 5 { // all clients that sent it get the error
				l.expired(token)
			}
		}
		if made < 30 || made > 150 {
			t.Errorf("%d logins within ten minutes", made)
		}
		time.Sleep(time.Hour)
		token, _ := l.get(t.Context())
		time.Sleep(time.Hour)
		l.expired(token)
		begin := time.Now()
		if _, err := l.get(t.Context()); err != nil || time.Since(begin) > time.Second {
			t.Errorf("a login that was good for an hour is replaced after %s, %v", time.Since(begin), err)
		}
	})
}

func TestALoginThatFailsIsRepeatedMoreAndMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried, away := 0, errors.New("no endpoint answers")
		l := newLogin(func(context.Context) (string, error) {
			if tried++; away != nil {
				return "", away
			}
			return "token", nil
		})
		defer l.end()
		for range 6000 {
			if _, err := l.get(t.Context()); !errors.Is(err, ErrNoLogin) || !errors.Is(err, away) || OutcomeUnknown(err) {
				t.Fatalf("it ended with %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if tried < 5 || tried > 25 {
			t.Errorf("%d logins within a minute", tried)
		}
		away = nil
		time.Sleep(2 * maxLoginPause)
		if token, err := l.get(t.Context()); err != nil || token != "token" {
			t.Errorf("later: %q, %v", token, err)
		}
	})
}

func TestALoginGoesOnWithoutTheRequestThatItWasFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		l := newLogin(func(ctx context.Context) (string, error) {
			made++
			time.Sleep(5 * time.Second) // etcd is busy
			return "token", context.Cause(ctx)
		})
		defer l.end()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if _, err := l.get(ctx); !errors.Is(err, ErrNoLogin) || !errors.Is(err, ErrUnavailable) || OutcomeUnknown(err) {
				t.Errorf("after two seconds: %v", err)
			}
			cancel()
		}
		if token, err := l.get(t.Context()); err != nil || token != "token" || made != 1 {
			t.Errorf("%q after %d logins, %v", token, made, err)
		}
	})
}
