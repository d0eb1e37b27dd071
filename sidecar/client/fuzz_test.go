package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
)

// answering is a server that says always the same.
type answering struct {
	status int
	body   []byte
}

// RoundTrip answers a request.
func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status, Status: http.StatusText(a.status), Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(a.body)),
	}, nil
}

func clientOf(status int, body []byte) *Client {
	return &Client{base: "http://fuzz", addr: "http://fuzz", http: &http.Client{Transport: answering{status, body}}}
}

// FuzzClientClaim reads answers of a server that may be any: whatever they say, an
// error is a problem, and validity is bounded.
func FuzzClientClaim(f *testing.F) {
	for _, body := range []string{
		`{"id":"a","status":"held","pools":{"db":1},"fence":7,"valid_for":"29.4s","grace":"5s","lease_duration":"30s","ttl":"30s"}`,
		`{"id":"a","status":"waiting","pools":{"db":1},"position":1}`, `{"valid_for":"2562047h","grace":"2562047h"}`,
		`{"valid_for":"-1s","grace":"-1"}`, `{"valid_for":"1m","grace":"-5ns"}`, `{"valid_for":"20000h","grace":"1ms"}`, `{"valid_for":"1ms","grace":"-2562047h"}`, `{"valid_for":1e99}`, `{"ttl":"x"}`, `null`, `[]`, ``, `{`,
	} {
		f.Add(201, []byte(body))
	}
	for _, body := range []string{
		`{"title":"No free slots","status":409,"code":"no_capacity","detail":"full","reason":"full","holders":[{"pool":"db"}]}`,
		`{"status":422,"code":"invalid","detail":"x","errors":[{"field":"id","message":"x"}]}`, `{"code":"made_up"}`, `<html>`, `{}`, `null`, ``,
	} {
		f.Add(409, []byte(body))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 || status/100 == 3 {
			return
		}
		claim, err := clientOf(status, body).Get(t.Context(), "a")
		if (err == nil) == (claim == nil) || err == nil && status >= 400 {
			t.Fatalf("%d %q is %+v, %v", status, body, claim, err)
		}
		if err != nil {
			var p *problem.Error
			if !errors.As(err, &p) || p.Code == "" || p.Error() == "" && status < 400 || p.Code.Status() < 400 {
				t.Errorf("%d %q is the error %#v", status, body, err)
			}
			return
		}
		left, grace := claim.Remaining()
		most := instance.MaxWait + pool.MaxLeaseDuration
		if left < 0 || grace < 0 || left > most || grace > most {
			t.Errorf("%q is valid for %s, with a grace of %s", body, left, grace)
		}
		if n := claim.ValidFor; (n == nil || *n <= 0) && left > 0 || n != nil && *n >= 0 && left > min(time.Duration(*n), most) {
			t.Errorf("%q is valid for %s", body, left)
		}
	})
}

// FuzzClientLists reads answers to what has another shape.
func FuzzClientLists(f *testing.F) {
	for _, body := range []string{
		`{"items":[{"name":"db","limit":3,"lease_duration":"5m","reserve_after":"-1"}]}`, `{"items":[{"name":"db","limit":-9223372036854775808,"lease_duration":"-2562047h47m16.854775808s"}]}`, `{"items":null}`, `{"items":[null]}`, `{"items":{}}`,
		`{"claim":{"id":"a"},"reason":{"text":"full","pools":[{"pool":"db"}]}}`, `{"name":"db","holders":[{"claim":"a"}],"waiters":[]}`, `{"items":[{}]} {}`, ``,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, ctx := clientOf(http.StatusOK, body), t.Context()
		_, poolsErr := c.Pools(ctx)
		_, hostsErr := c.Hosts(ctx)
		pool, poolErr := c.Pool(ctx, "db")
		why, whyErr := c.Why(ctx, "a")
		if (poolErr == nil) != (pool != nil) || (whyErr == nil) != (why != nil) {
			t.Errorf("%q is %+v, %v and %+v, %v", body, pool, poolErr, why, whyErr)
		}
		for _, err := range []error{poolsErr, hostsErr, poolErr, whyErr} {
			if err != nil && problem.CodeOf(err) != problem.Unavailable {
				t.Errorf("%q is the error %v", body, err)
			}
		}
	})
}

// FuzzClientEvents reads streams of a server that may be any.
func FuzzClientEvents(f *testing.F) {
	for _, body := range []string{
		"event: hello\ndata: {\"type\":\"hello\",\"claim\":\"a\",\"state\":\"held\"}\n\n: still here\n\nid: 1\nevent: ClaimEnded\ndata: {\"type\":\"ClaimEnded\",\"claim\":\"a\",\"code\":\"claim_revoked\",\"reason\":\"x\"}\n\n",
		"data: {\"type\":\"hello\",\"state\":\"unknown\"}\n\n", "data: {\"type\":\"ClaimReleased\",\"claim\":\"a\"}\n\n", "data: {\"type\":\"lagged\"}\n\n",
		"data: {\"type\":\"ClaimEnded\",\"claim\":\"a\"}\n", "data: {\"type\":\"ClaimEnded\",\"claim\":\"b\",\"code\":\"x\"}", "data: {\r\n", "data: null\n", "data:\n", "\r\r\n", "",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c := clientOf(http.StatusOK, body)
		n := 0
		err := c.Events(t.Context(), "a", "", func(api.Event) error { n++; return nil })
		if err != nil && problem.CodeOf(err) != problem.Unavailable {
			t.Errorf("%q ends with %v", body, err)
		}
		if most := bytes.Count(body, []byte("data: ")); n > most {
			t.Errorf("%q has %d events", body, n)
		}
		ended, err := c.watchOnce(context.Background(), "a", func() {})
		code := problem.CodeOf(err)
		switch {
		case ended && err == nil, !ended && (err == nil || code == problem.Unavailable):
		case ended && (code == problem.ClaimLost || code == problem.ClaimRevoked || code == problem.ClaimNotFound):
		default:
			t.Errorf("%q: ended %v, %v", body, ended, err)
		}
	})
}
