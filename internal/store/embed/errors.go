package embed

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// Reasons why a member can't start, or has stopped. Test with errors.Is. The complete error names
// the address or the directory.
var (
	// ErrAddressInUse: another process listens at the address. ErrAddress: the address for clients can't
	// be used for this or another reason.
	ErrAddressInUse = errors.New("address is in use")
	ErrAddress      = errors.New("address can't be used")
	// ErrPeerAddress: the address for other members can't be used.
	ErrPeerAddress = errors.New("address for other members can't be used")
	// ErrSocketPath: the path of a unix socket is too long.
	ErrSocketPath = errors.New("path is too long")
	// ErrDataDirLocked: another process serves from the data directory.
	ErrDataDirLocked = errors.New("data directory is in use")
	// ErrDataDir: the data directory can't be made, read or written.
	ErrDataDir = errors.New("data directory is unusable")
	// ErrDiskFull: there is no space for the data.
	ErrDiskFull = errors.New("disk is full")
	// ErrDataTooNew: a newer etcd has written the data.
	ErrDataTooNew = errors.New("data is from a newer etcd")
	// ErrRemoved: the member was removed from its cluster.
	ErrRemoved = errors.New("this member was removed from its cluster")
	// ErrStillStopping: etcd had not stopped when [CloseTimeout] was over.
	ErrStillStopping = errors.New("etcd is still stopping")
)

// explain wraps an error of etcd in one of the errors above, and names what an operator can change.
// It returns other errors, and errors that are already wrapped, unchanged.
func explain(cfg *Config, err error) error {
	switch {
	case err == nil || explained(err):
		return err
	case isListen(err):
		return cfg.explainListen(err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: data directory %s: %w", ErrDiskFull, cfg.DataDir, err)
	case strings.Contains(err.Error(), "invalid downgrade"):
		return fmt.Errorf("%w: data directory %s: %w", ErrDataTooNew, cfg.DataDir, err)
	case strings.Contains(err.Error(), "server is stopping"):
		// etcd reports this when it stops during its start, which has no other cause.
		return fmt.Errorf("%w: %w", ErrRemoved, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return err
}

// isListen reports whether an address could not be listened at.
func isListen(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "listen" && op.Net != "unix"
}

// Explain wraps an error of listening at the address for clients as [Start] does, and returns others unchanged.
func Explain(err error) error {
	if !isListen(err) {
		return err
	}
	return (&Config{}).explainListen(err)
}

// explainListen says for whom an address is that could not be listened at.
func (c *Config) explainListen(err error) error {
	kind := ErrAddress
	op := (*net.OpError)(nil)
	if own, ok := c.Members[c.Name]; ok && errors.As(err, &op) && op.Addr != nil {
		_, port, _ := net.SplitHostPort(own)
		_, at, _ := net.SplitHostPort(op.Addr.String())
		_, clients, _ := net.SplitHostPort(c.ClientListen)
		if at == port && (at != clients || op.Addr.String() != c.ClientListen) {
			kind = ErrPeerAddress
		}
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		kind = fmt.Errorf("%w: %w", kind, ErrAddressInUse)
	}
	return &listenError{kind, err}
}

// listenError is an error of a listener, which says enough, with its kind.
type listenError struct{ kind, err error }

// Error returns the text of the listener.
func (e *listenError) Error() string { return e.err.Error() }

// Unwrap returns the kind and the error of the listener.
func (e *listenError) Unwrap() []error { return []error{e.kind, e.err} }

func explained(err error) bool {
	for _, known := range []error{ErrAddressInUse, ErrAddress, ErrPeerAddress, ErrSocketPath, ErrDataDirLocked, ErrDataDir, ErrDiskFull, ErrDataTooNew, ErrRemoved} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
