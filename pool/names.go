package pool

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/singleflight"

	"github.com/berthhq/berth/internal/problem"
)

// Bounds of what a claim can ask for.
const (
	// MaxPools is how many pools a claim can name: each costs two compares, and
	// etcd takes 128 a transaction.
	MaxPools = 32
	// MaxKeys is how many slot keys a claim can need: [MaxPools] × [MaxGroups].
	MaxKeys = MaxPools * MaxGroups
	// MaxPriority and MinPriority bound a priority; higher goes first.
	MaxPriority, MinPriority = 1000, -1000
	// MaxLabels is how many labels a holder can carry.
	MaxLabels = 32
	// MaxText bounds an id, a label's key and value, and each name of a holder,
	// in bytes.
	MaxText = 128
	// maxPoolName bounds a pool's name, in bytes.
	maxPoolName = 63
)

// ValidateName refuses what can't be the name of a pool.
func ValidateName(name string) error {
	if !isPoolName(name) {
		return problem.Field("pool", "%q is no pool name: allowed are 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(name))
	}
	return nil
}

// ValidateID refuses what can't be the id of a claim.
func ValidateID(id string) error {
	if !isClaimID(id) {
		return problem.Field("id", "%q is no claim id: allowed are 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit", problem.Clip(id), MaxText)
	}
	return nil
}

// ValidateClaim refuses what can't name a claim: an id is wanted, or HOST/INSTANCE/ID.
func ValidateClaim(claim string) error {
	by, id, named := cutInstance(claim)
	if named && (!isPoolName(by.Host) || !isPoolName(by.Instance)) || strings.Contains(id, "/") {
		return problem.Field("id", "%q names no claim: allowed is an id, or HOST/INSTANCE/ID", problem.Clip(claim))
	}
	return ValidateID(id)
}

func isPoolName(s string) bool {
	return len(s) <= maxPoolName && isWord(s) && strings.ToLower(s) == s
}

func isClaimID(s string) bool { return len(s) <= MaxText && isWord(s) }

// isWord reports whether s is made of letters, digits, '.', '_' and '-', and
// begins with one of the first two. It is asked for every event of a watch.
func isWord(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// IsLine reports whether a text can be shown in one line of text, also on a terminal: it
// is UTF-8 without control characters, line separators, and characters that change the
// direction in which the text around them is shown.
func IsLine(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
	})
}

// ValidateLine refuses a text that is not [IsLine].
func ValidateLine(field, s string) error {
	if !IsLine(s) {
		return problem.Field(field, "%q can't be shown in one line of text: allowed is text without control characters, line breaks and characters that change its direction", problem.Clip(s))
	}
	return nil
}

func validateText(field, s string) error {
	if len(s) > MaxText {
		return problem.Field(field, "%q is %d bytes long: allowed are %d", problem.Clip(s), len(s), MaxText)
	}
	return nil
}

const (
	// specTimeout bounds reading whether there is a pool, and specPause is for how long it is
	// not read again after a failure.
	specTimeout = 200 * time.Millisecond
	specPause   = time.Second
	// maxSpecs bounds the pools that are remembered.
	maxSpecs = 1000
)

// specs knows which pools there are, as of the last second.
type specs struct {
	flights singleflight.Group

	mu     sync.Mutex // guards what follows
	known  map[string]knownSpec
	failed time.Time // the last read that failed
}

// knownSpec is whether there was a pool at some time.
type knownSpec struct {
	exists bool
	at     time.Time
}

// of returns what is known of a pool, and whether it is to be used without reading it.
func (s *specs) of(name string) (exists, use bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.known[name]
	return k.exists || !ok, ok && time.Since(k.at) < shareFor || time.Since(s.failed) < specPause
}

func (s *specs) note(name string, k knownSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSpecs {
		s.known = map[string]knownSpec{}
	}
	s.known[name] = k
}

// fail notes that a pool could not be read.
func (s *specs) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = time.Now()
}

// forget has every pool read again.
func (s *specs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}

// HasPool reports whether there is a pool of that name, as it was at most a second ago. While
// etcd does not answer it is what is known of it, and true if nothing is: a claim finds out.
func (e *Engine) HasPool(name string) bool {
	exists, use := e.specs.of(name)
	if use {
		return exists
	}
	seen, _, _ := e.specs.flights.Do(name, func() (any, error) { return e.readSpec(name, exists), nil })
	return seen.(bool)
}

// readSpec reads whether there is a pool, and otherwise returns what is known.
func (e *Engine) readSpec(name string, known bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), specTimeout)
	defer cancel()
	at := time.Now()
	resp, err := e.cfg.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(e.cfg.Keys.Spec(name)), CountOnly: true})
	if err != nil {
		e.specs.fail()
		return known
	}
	e.specs.note(name, knownSpec{exists: resp.Count > 0, at: at})
	return resp.Count > 0
}
