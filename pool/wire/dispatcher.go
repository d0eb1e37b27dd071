package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Kind is a kind of process, in the order in which they take the role of dispatcher from each other.
type Kind string

// Kinds of processes: those that end with a command, those that stay, servers, and leading coordinators.
const (
	Command     Kind = "command"
	Service     Kind = "service"
	Server      Kind = "server"
	Coordinator Kind = "coordinator"
)

// Role says who dispatches.
type Role struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Kind     Kind      `json:"kind"`
	Since    time.Time `json:"since"`
	// TakeOvers are the times, not older than a minute, at which the role was taken from one that was silent.
	TakeOvers []time.Time `json:"take_overs,omitempty"`
	// Ends is set if the dispatcher ends. Then the instance NextHost/NextInstance shall follow, if there is one.
	Ends         bool   `json:"ends,omitempty"`
	NextHost     string `json:"next_host,omitempty"`
	NextInstance string `json:"next_instance,omitempty"`
}

// Mark is the sign of life of the dispatcher. Its revision is what counts.
type Mark struct {
	// Demands is set while there are any.
	Demands bool `json:"demands,omitempty"`
}

// ID is whose a claim is whose id its user has chosen.
type ID struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
}

// maxTakeOvers bounds the take-overs of a minute: the patience doubles with each.
const maxTakeOvers = 64

type (
	roleValue struct {
		store.V
		Role
	}
	markValue struct {
		store.V
		Mark
	}
	idValue struct {
		store.V
		ID
	}
	emptyValue struct{ store.V }
)

// EncodeRole returns the value of the key of the dispatcher's role.
func EncodeRole(r Role) []byte { return store.Encode(roleValue{now, r}) }

// EncodeMark returns the value of the dispatcher's sign of life.
func EncodeMark(m Mark) []byte { return store.Encode(markValue{now, m}) }

// EncodeID returns the value of the key of a claim's id.
func EncodeID(i ID) []byte { return store.Encode(idValue{now, i}) }

// EncodeEmpty returns the value of keys whose presence is all that counts: that a pool is pending, that an instance is
// passed, and advance offers.
func EncodeEmpty() []byte { return store.Encode(emptyValue{now}) }

// DecodeRole reads the value of the key of the dispatcher's role.
func DecodeRole(key string, data []byte) (Role, error) {
	var v roleValue
	err := decode(key, data, &v, v.check)
	return v.Role, err
}

func (r *Role) check() error {
	switch r.Kind {
	case Command, Service, Server, Coordinator:
	default:
		return errors.New("kind must be command, service, server or coordinator")
	}
	if len(r.TakeOvers) > maxTakeOvers {
		return fmt.Errorf("take_overs must be at most %d", maxTakeOvers)
	}
	if (r.NextHost == "") != (r.NextInstance == "") || r.NextHost != "" && !r.Ends {
		return errors.New("next_host and next_instance must be set together, and only if it ends")
	}
	if r.NextHost != "" {
		if err := isInstance(r.NextHost, r.NextInstance); err != nil {
			return fmt.Errorf("next: %w", err)
		}
	}
	return isInstance(r.Host, r.Instance)
}

// DecodeMark reads the value of the dispatcher's sign of life.
func DecodeMark(key string, data []byte) (Mark, error) {
	var v markValue
	err := decode(key, data, &v, func() error { return nil })
	return v.Mark, err
}

// DecodeID reads the value of the key of a claim's id.
func DecodeID(key string, data []byte) (ID, error) {
	var v idValue
	err := decode(key, data, &v, func() error { return isInstance(v.Host, v.Instance) })
	return v.ID, err
}

// decode reads a value of the layout and checks it.
func decode(key string, data []byte, v store.Versioned, check func() error) error {
	if err := store.DecodeVersion(Version, key, data, v); err != nil {
		return err
	}
	if err := check(); err != nil {
		return &store.CorruptError{Key: key, Reason: err}
	}
	return nil
}

func isInstance(host, instance string) error {
	if err := pool.ValidateName(host); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := pool.ValidateName(instance); err != nil {
		return fmt.Errorf("instance: %w", err)
	}
	return nil
}
