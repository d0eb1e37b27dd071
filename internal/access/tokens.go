package access

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/internal/problem"
)

// Token is a named secret that gives its bearer grants. The secret itself is not kept.
type Token struct {
	Name string `yaml:"name"`
	// Hash identifies the secret: see [hashOf].
	Hash string `yaml:"hash"`
	// Roles are grants, as [ParseGrants] reads them. Rules of the policy can add others.
	Roles   []string  `yaml:"roles,flow"`
	Created time.Time `yaml:"created"`
	// Expires is when the token ends; zero is never.
	Expires time.Time `yaml:"expires,omitempty"`

	grants Grants
}

// Expired reports whether a token has ended.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// secretPrefix begins the secrets, so that scanners for secrets find them.
const secretPrefix = "berth_"

// secretBytes is how many random bytes a secret has: too many to guess, so that a hash
// without a salt is enough.
const secretBytes = 32

// hashOf returns the hash under which a secret is kept.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// NewToken makes a token and its secret.
func NewToken(name string, grants Grants, created, expires time.Time) (t Token, secret string, err error) {
	if !validName(name) || strings.Contains(name, Everything) {
		return t, "", problem.Field("name", "%s is no name of a token: use 1 to %d visible ASCII characters without *, comma and quotes", problem.Quote(name), MaxName)
	}
	if !expires.IsZero() && !expires.After(created) {
		return t, "", problem.Field("expires", "a token must expire later than it was created")
	}
	random := make([]byte, secretBytes)
	_, _ = rand.Read(random) // it never fails
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return Token{
		Name: name, Hash: hashOf(secret), Roles: grants.Texts(),
		Created: created.UTC().Truncate(time.Second), Expires: expires.UTC().Truncate(time.Second), grants: grants,
	}, secret, nil
}

// Tokens are the tokens of a file. The zero value has none.
type Tokens struct {
	// List are the tokens, in the order of the file.
	List   []Token
	byHash map[string]int
}

// MaxTokens bounds the file of tokens, in bytes: some 5,000 tokens.
const MaxTokens = 1 << 20

// ParseTokens reads a file of tokens. Its errors name the token.
func ParseTokens(data []byte) (Tokens, error) {
	var ts Tokens
	if len(data) > MaxTokens {
		return ts, fmt.Errorf("it is longer than %d bytes", MaxTokens)
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	in.KnownFields(true)
	if err := in.Decode(&ts.List); err != nil && !errors.Is(err, io.EOF) {
		return Tokens{}, fmt.Errorf("it is no list of tokens: %w", err)
	}
	if err := in.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Tokens{}, errors.New("it has more than one document")
	}
	return ts, ts.index()
}

// index checks the tokens, and makes them ready for [Tokens.Find].
func (ts *Tokens) index() error {
	ts.byHash = make(map[string]int, len(ts.List))
	names := make(map[string]bool, len(ts.List))
	for i := range ts.List {
		t := &ts.List[i]
		if !validName(t.Name) || strings.Contains(t.Name, Everything) {
			return fmt.Errorf("token %d: %s is no name of a token", i+1, problem.Quote(t.Name))
		}
		if names[t.Name] {
			return fmt.Errorf("token %s: the name is given twice", t.Name)
		}
		names[t.Name] = true
		if digest, ok := strings.CutPrefix(t.Hash, "sha256:"); !ok || len(digest) != hex.EncodedLen(sha256.Size) || strings.Trim(digest, "0123456789abcdef") != "" {
			return fmt.Errorf("token %s: its hash must be sha256: and 64 hexadecimal digits", t.Name)
		}
		if _, ok := ts.byHash[t.Hash]; ok {
			return fmt.Errorf("token %s: another token has its hash", t.Name)
		}
		ts.byHash[t.Hash] = i
		var err error
		if t.grants, err = ParseGrants(t.Roles); err != nil {
			return fmt.Errorf("token %s: %w", t.Name, err)
		}
	}
	return nil
}

// Encode writes the tokens as [ParseTokens] reads them.
func (ts Tokens) Encode() ([]byte, error) {
	if len(ts.List) == 0 {
		return []byte("[]\n"), nil
	}
	return yaml.Marshal(ts.List)
}

// Add adds a token. The name of one that has expired can be used again.
func (ts *Tokens) Add(t Token, now time.Time) error {
	if i := ts.position(t.Name); i >= 0 {
		if !ts.List[i].Expired(now) {
			return problem.Field("name", "there is a token %s already: revoke it first, or use another name", problem.Quote(t.Name))
		}
		ts.List = slices.Delete(ts.List, i, i+1)
	}
	ts.List = append(ts.List, t)
	return ts.index()
}

// Revoke removes a token, and reports whether there was one.
func (ts *Tokens) Revoke(name string) (bool, error) {
	i := ts.position(name)
	if i < 0 {
		return false, nil
	}
	ts.List = slices.Delete(ts.List, i, i+1)
	return true, ts.index()
}

func (ts *Tokens) position(name string) int {
	return slices.IndexFunc(ts.List, func(t Token) bool { return t.Name == name })
}

// Find returns the token with a secret. Its error is a problem of the code unauthorized.
func (ts Tokens) Find(secret string, now time.Time) (Token, error) {
	i, ok := ts.byHash[hashOf(secret)]
	if !ok {
		return Token{}, problem.New(problem.Unauthorized, "the token is not one that this server knows: it was revoked, or is meant for another server")
	}
	return ts.List[i], ts.List[i].check(now)
}

// Named returns the token with a name that has not expired; false if there is none.
func (ts Tokens) Named(name string, now time.Time) (Token, bool) {
	i := ts.position(name)
	if i < 0 || ts.List[i].Expired(now) {
		return Token{}, false
	}
	return ts.List[i], true
}

func (t Token) check(now time.Time) error {
	if t.Expired(now) {
		return problem.New(problem.Unauthorized, "the token %s expired at %s: ask for a new one", t.Name, t.Expires.Format(time.RFC3339))
	}
	return nil
}

// Identity returns the identity of the bearer of a token.
func (t Token) Identity(p *Policy) Identity {
	id := Identity{Kind: TokenBearer, Name: t.Name}
	id.Grants = p.Grants(id, t.grants)
	return id
}
