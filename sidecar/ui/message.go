package ui

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
)

// A page that comes after an action says what has happened. The message is in its address, sealed,
// so that nobody makes a page of ours say something with a link.
const (
	messageKey = "said"
	sealKey    = "seal"
)

func newSeal() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return key
}

func (p *Pages) sealOf(message string) string {
	mac := hmac.New(sha256.New, p.seal)
	mac.Write([]byte(message))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// tell adds a message to the address of a page.
func (p *Pages) tell(to, message string) string {
	u, err := url.Parse(to)
	if err != nil {
		return to
	}
	q := u.Query()
	q.Set(messageKey, message)
	q.Set(sealKey, p.sealOf(message))
	u.RawQuery = q.Encode()
	return u.String()
}

// told is the message in the query of a page, empty if there is none of ours.
func (p *Pages) told(query url.Values) string {
	message := query.Get(messageKey)
	if message == "" || !hmac.Equal([]byte(query.Get(sealKey)), []byte(p.sealOf(message))) {
		return ""
	}
	return message
}
