package client

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func TestATokenIsNotSentInPlainTextToAnotherHost(t *testing.T) {
	for _, other := range []string{
		"http://berth.example.com:7420", "http://192.0.2.1:7420", "http://0.0.0.0:1", "http://localhost.example.com", "http://[2001:db8::1]:7420",
		"HTTP://berth.example.com", "http://127.0.0.1.example.com",
	} {
		_, err := Dial(other, "secret")
		if problem.CodeOf(err) != problem.Invalid || !strings.Contains(err.Error(), "--insecure") {
			t.Errorf("%s: %v", other, err)
		}
		if _, err := Dial(other, ""); err != nil {
			t.Errorf("%s, without a token: %v", other, err)
		}
		if _, err := DialInsecure(other, "secret"); err != nil {
			t.Errorf("%s, insecure: %v", other, err)
		}
	}
	for _, own := range []string{
		"http://127.0.0.1:7420", "http://127.9.9.9", "http://LocalHost:1", "http://[::1]:7420", "http://[::ffff:127.0.0.1]:1", "unix:///s", "https://berth.example.com",
	} {
		if _, err := Dial(own, "secret"); err != nil {
			t.Errorf("%s: %v", own, err)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked++ }))
	defer other.Close()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		from := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, status)
		}))
		c, err := Dial(from.URL, "secret")
		if err != nil {
			t.Fatal(err)
		}
		err = c.WithClientToken("own").Release(t.Context(), "job")
		if problem.CodeOf(err) != problem.Unavailable || !strings.Contains(err.Error(), "redirects to") || !strings.Contains(err.Error(), other.URL) {
			t.Errorf("%d: %v", status, err)
		}
		c.Close()
		from.Close()
	}
	if asked > 0 {
		t.Errorf("%d requests came to the other host", asked)
	}
}
