package claims

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Binding describes how a server detects that a holder is alive.
type Binding struct {
	// ttl is the time within which the holder must renew; 0 means no limit. With lease set, the
	// lease duration applies instead, which is unknown before the grant.
	ttl   time.Duration
	lease bool
	// proc is the process that holds the claim; its pid is 0 if the holder named none.
	proc proc.ID
	// uid is the user who bound the claim to the process. The server sends signals as this user.
	uid uint32
	// unproven marks a binding that was read only from etcd, where another host may have changed
	// it. Its process is watched, but not signaled. The mark is not stored.
	unproven bool
	// onlyKill means that the holder sends SIGTERM to its process, and the server only SIGKILL.
	onlyKill bool
	// tokenHash is the hash of the client's token, empty if there is none. It is part of the
	// binding because requests with the same id are compared with the stored claim.
	tokenHash string
}

// byLease is the binding of a claim without ttl, pid and token.
var byLease = Binding{lease: true}

// ttlOf returns the ttl of a claim with a lease of the given duration.
func (b Binding) ttlOf(lease time.Duration) time.Duration {
	if b.lease {
		return lease
	}
	return b.ttl
}

// bindingValue is the stored form of a binding, in etcd and in files.
type bindingValue struct {
	store.V
	TTL string `json:"ttl,omitempty"`
	proc.ID
	UID      *uint32 `json:"uid,omitempty"` // with a process
	OnlyKill bool    `json:"only_kill,omitempty"`
	// TokenHash is the SHA-256 hash of the client token, in base64.
	TokenHash string `json:"client_token_hash,omitempty"`
}

// ttlLease is the stored ttl that means the lease duration.
const ttlLease = "lease"

// byLeaseText is the stored form of [byLease], the most frequent binding.
var byLeaseText = string(store.Encode(bindingValue{V: store.Now, TTL: ttlLease}))

// Encode returns the stored form of a binding. Equal bindings have equal forms.
func (b Binding) Encode() string {
	if b == byLease {
		return byLeaseText
	}
	v := bindingValue{
		V: store.Now, ID: b.proc, OnlyKill: b.onlyKill, TokenHash: b.tokenHash,
	}
	if b.proc.PID != 0 {
		v.UID = &b.uid
	}
	switch {
	case b.lease:
		v.TTL = ttlLease
	case b.ttl > 0:
		v.TTL = b.ttl.String()
	}
	return string(store.Encode(v))
}

// decodeBinding is the inverse of [Binding.Encode].
func decodeBinding(text string) (Binding, error) {
	var v bindingValue
	if err := decodeStrict(text, &v); err != nil {
		return Binding{}, fmt.Errorf("the binding can't be read: %w", err)
	}
	b := Binding{lease: v.TTL == ttlLease, onlyKill: v.OnlyKill, tokenHash: v.TokenHash}
	if v.TTL != "" && !b.lease {
		d, err := time.ParseDuration(v.TTL)
		if err != nil || d < MinTTL || d > MaxTTL {
			return Binding{}, fmt.Errorf("the binding can't be read: its ttl is %s", problem.Quote(v.TTL))
		}
		b.ttl = d
	}
	if v.PID < 0 || (v.PID > 0) != (v.Boot != "") || (v.PID > 0) != (v.UID != nil) || v.PID == 0 && (v.Start != 0 || v.Namespace != 0 || v.OnlyKill) {
		return Binding{}, errors.New("the binding can't be read: it names no process, or no user")
	}
	if len(v.TokenHash) > len(hashOf("x")) {
		return Binding{}, errors.New("the binding can't be read: its client_token_hash is no hash")
	}
	if b.proc = v.ID; v.UID != nil {
		b.uid = *v.UID
	}
	return b, nil
}

// decodeStrict reads one JSON value of a known version, and refuses unknown fields.
func decodeStrict(text string, v store.Versioned) error {
	err := store.Decode("", []byte(text), v)
	var corrupt *store.CorruptError
	if errors.As(err, &corrupt) {
		return corrupt.Reason
	}
	return err
}

// Bounds of the ttl of a claim.
const (
	// MinTTL leaves time for two attempts at a renewal.
	MinTTL = time.Second
	// MaxTTL is the longest time for which a dead holder without a pid can block other claims.
	MaxTTL = 24 * time.Hour
)

// Life is what the holder of a claim requests: how the server should detect that the holder is
// alive.
type Life struct {
	TTL         *time.Duration // 0 is none, nil says nothing
	PID         int            // 0 names no process
	UID         uint32         // of the user who names it
	OnlyKill    bool
	ClientToken string
}

// BindingOf returns the binding that a new claim requests. The caller still has to open its
// process: see [Binding.To].
func BindingOf(l Life) (Binding, error) {
	b := Binding{proc: proc.ID{PID: l.PID}, onlyKill: l.OnlyKill, tokenHash: hashOf(l.ClientToken)}
	if l.PID != 0 {
		b.uid = l.UID
	}
	if err := checkOnlyKill(l.OnlyKill, l.PID); err != nil {
		return b, err
	}
	if err := checkClientToken(l.ClientToken); err != nil {
		return b, err
	}
	if l.TTL == nil {
		b.lease = l.PID == 0
		return b, nil
	}
	var err error
	b.ttl, err = checkTTL(*l.TTL)
	return b, err
}

// To returns the binding with an opened process; nil returns it unchanged.
func (b Binding) To(process *proc.Process) Binding {
	if process != nil {
		b.proc = process.ID()
	}
	return b
}

// Untimed reports whether the claim has no ttl.
func (b Binding) Untimed() bool { return !b.lease && b.ttl == 0 }

// renewed returns the binding after a renewal.
func (b Binding) renewed(l Life) (Binding, error) {
	if err := checkOnlyKill(l.OnlyKill, l.PID); err != nil {
		return b, err
	}
	if l.PID != 0 {
		b = Binding{proc: proc.ID{PID: l.PID}, uid: l.UID, onlyKill: l.OnlyKill, tokenHash: b.tokenHash}
	}
	if l.TTL == nil {
		return b, nil
	}
	var err error
	b.lease = false
	b.ttl, err = checkTTL(*l.TTL)
	return b, err
}

func checkTTL(d time.Duration) (time.Duration, error) {
	if d != 0 && (d < MinTTL || d > MaxTTL) {
		return 0, problem.Field("ttl", "%s is out of range: use %s to %s, and 0s for a claim that is not timed", pool.FormatReserveAfter(d), MinTTL, MaxTTL)
	}
	return d, nil
}

// initPID is the first process of a pid namespace; all others end with it.
const initPID = 1

// CheckPID returns a problem for numbers that can't be process ids, and for processes that must not
// be stopped when a claim is lost.
func CheckPID(pid int) error {
	switch {
	case pid <= 0:
		return problem.Field("pid", "%d is no process", pid)
	case pid == initPID:
		return problem.Field("pid", "process %d is the system's own: a claim is bound to its holder's process, which is stopped if it is lost", pid)
	case pid == os.Getpid():
		return problem.Field("pid", "process %d is the sidecar itself", pid)
	}
	return nil
}

// checkOnlyKill returns a problem if only_kill is set without a pid.
func checkOnlyKill(onlyKill bool, pid int) error {
	if onlyKill && pid == 0 {
		return problem.Field("only_kill", "it is about a process: name that as pid")
	}
	return nil
}

// hashOf returns the hash of a client token, which is stored where others can read it.
func hashOf(clientToken string) string {
	if clientToken == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(clientToken))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// checkClientToken returns a problem if a client token is too long.
func checkClientToken(clientToken string) error {
	if len(clientToken) > pool.MaxText {
		return problem.Field("client_token", "%s is %d bytes long: use at most %d", problem.Quote(clientToken), len(clientToken), pool.MaxText)
	}
	return nil
}
