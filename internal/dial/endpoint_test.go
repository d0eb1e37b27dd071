package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/net/http2"
)

func TestTheFirstAnswerSaysWhatSpeaks(t *testing.T) {
	e := New("127.0.0.1:2379", nil, nil)
	for answer, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n":             "127.0.0.1:2379 speaks HTTP/1.1: that is not an etcd",
		"HTTP/1.0 400 Bad Request\r\n":             "127.0.0.1:2379 speaks HTTP/1.0: that is not an etcd",
		"HTTP/1.\x1b[2J":                           "127.0.0.1:2379 speaks HTTP/1.1: that is not an etcd",
		"<!DOCTYPE HTML>":                          "127.0.0.1:2379 speaks HTTP/1: that is not an etcd",
		"SSH-2.0-OpenSSH_9.2\r\n":                  "127.0.0.1:2379 speaks another protocol: that is not an etcd",
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00":     "",                                                            // settings
		"\x00\x00\x06\x04\x00\x00\x00\x00\x01":     "127.0.0.1:2379 speaks another protocol: that is not an etcd", // settings of a stream
		"\x00\x00\x08\x07\x00\x00\x00\x00\x00late": "127.0.0.1:2379 speaks another protocol: that is not an etcd", // a GOAWAY comes after settings
		"\x00\x00\x06":                             "",                                                            // too short to tell
	} {
		got := ""
		if f := e.protocol([]byte(answer)); f != nil {
			got = f.text
		}
		if got != want {
			t.Errorf("%q: %q, want %q", answer, got, want)
		}
	}
}

// A frame that a server of HTTP/2 may begin with is no fault, and whatever else a peer says, the text is
// one line that shows nothing of it.
func FuzzFirstAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x15\x03\x01\x00\x02\x02\x46"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		fault := New("127.0.0.1:2379", nil, nil).protocol(answer)
		if fault != nil && (!strings.HasPrefix(fault.text, "127.0.0.1:2379 speaks ") || len(fault.text) > 80) {
			t.Errorf("%q: %q", answer, fault.text)
		}
		frame, err := http2.NewFramer(nil, strings.NewReader(string(answer))).ReadFrame()
		if _, ok := frame.(*http2.SettingsFrame); err == nil && ok && fault != nil {
			t.Errorf("%q begins with settings of HTTP/2: %q", answer, fault.text)
		}
	})
}

// The names in a certificate are those that its maker wants.
func FuzzCertificateTexts(f *testing.F) {
	f.Add("etcd.example", "berth")
	f.Add("a\x1b]0;title\x07\nb", "\u202egnp")
	f.Add(strings.Repeat("long.", 10_000), strings.Repeat("x", 10_000))
	f.Fuzz(func(t *testing.T, host, common string) {
		e := New("127.0.0.1:2379", nil, func() *tls.Config { return &tls.Config{} })
		c := &x509.Certificate{DNSNames: []string{host, host, host, host, host, host, host}, IPAddresses: []net.IP{net.IPv6loopback}}
		c.Subject.CommonName = common
		for _, err := range []error{
			x509.HostnameError{Certificate: c, Host: "127.0.0.1"},
			x509.CertificateInvalidError{Cert: c, Reason: x509.Expired},
			&tls.CertificateVerificationError{UnverifiedCertificates: []*x509.Certificate{c}, Err: errors.New(host + common)},
		} {
			fault := e.ofCertificate(err)
			if fault == nil || len(fault.text) > 3_000 || strings.ContainsFunc(fault.text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%T of %q and %q: %+v", err, host, common, fault)
			}
		}
	})
}
