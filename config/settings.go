package config

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// Settings are all settings, with defaults where nothing was given. What each
// must be is in the table of [Fields].
type Settings struct {
	// LogLevel is the least level that is logged, LogFormat "text" or "json".
	LogLevel, LogFormat string

	// Endpoints are the client addresses of etcd's members.
	Endpoints []string
	// Prefix of all keys, with a slash at both ends.
	Prefix string
	// CACert, Cert and Key name PEM files: see [Settings.ClientTLS].
	CACert, Cert, Key string
	// User and Password are for etcd, empty unless it asks for them.
	User     string
	Password Secret

	// Sidecar is where the commands find a sidecar: "http://…", "https://…",
	// "unix:///…", or empty for none.
	Sidecar string
	// SidecarCACert, SidecarCert and SidecarKey name PEM files: see
	// [Settings.SidecarTLS].
	SidecarCACert, SidecarCert, SidecarKey string
	// Token is what is shown to the sidecar over TCP, empty for nothing.
	Token Secret
	// Insecure sends the token over plain HTTP to other hosts.
	Insecure bool

	// Host is this machine's name: lower case, as in keys.
	Host string
	// StateDir is where instances keep what makes them resumable.
	StateDir string
	// Listen is the HTTP address of the sidecar, empty for none. Socket is the
	// path of its unix socket, empty for none.
	Listen, Socket string
	// SocketMode is the mode of that socket. SocketGroup is its group, a name or a
	// number; empty is that of the process.
	SocketMode  Mode
	SocketGroup string
	// Roles are rules of who may do what: see package access.
	Roles []string
	// TokensFile names the file with the tokens of HTTP clients: see [Settings.ServerTokens].
	TokensFile string
	// TLSCert, TLSKey and ClientCA name PEM files: see [Settings.ServerTLS].
	TLSCert, TLSKey, ClientCA string

	// ClaimTimeout bounds the wait of claims that say nothing else, and of step instances.
	ClaimTimeout time.Duration
	// ClaimPollInterval and ClaimPollJitter are how often a waiting claim is
	// checked without an event; 0 is never, and no jitter.
	ClaimPollInterval, ClaimPollJitter time.Duration

	// MaxUnfinishedRuns, MaxStoredRunData and MaxNotBefore bound what one identity can submit.
	MaxUnfinishedRuns int
	MaxStoredRunData  Size
	MaxNotBefore      time.Duration

	// Coordinator has a sidecar run a coordinator.
	Coordinator bool
	// TickInterval is how often a coordinator plans at the least.
	TickInterval time.Duration
	// StartTimeout is how long an admitted run waits for its executor.
	StartTimeout time.Duration
	// RunRetention is how long runs that have ended, and events, are kept.
	RunRetention time.Duration
	// MaxRunEvents bounds the events of a run.
	MaxRunEvents int
	// CompactInterval is how much history of etcd a coordinator keeps; 0 is all.
	CompactInterval time.Duration

	// CommandsFrom are patterns of the identities whose commands a worker runs: see
	// [access.Patterns].
	CommandsFrom []string

	// Name is that of this member among those of Cluster, which are the servers of a cluster. Without
	// Cluster, a server is alone.
	Name    string
	Cluster Cluster
	// DataDir and EtcdListen are the embedded etcd's. EtcdListen is a unix socket in DataDir for a
	// server that is alone and has no certificate.
	DataDir, EtcdListen string

	// Where the password and the token were read from.
	passwordFile, tokenFile string
	// finder finds etcd without Endpoints; nil if they were given.
	finder *finder
}

// Dial returns how to connect to etcd. If Endpoints were not given, that finds the etcd of this machine.
// Nil means that there is nothing to find, and no socket to check.
func (s Settings) Dial() func(ctx context.Context, address string) (net.Conn, error) {
	switch {
	case s.finder != nil:
		return s.finder.dial
	case slices.ContainsFunc(s.Endpoints, isSocketURL):
		return dialEndpoint
	}
	return nil
}

// EtcdAt returns where etcd is, for people.
func (s Settings) EtcdAt() string {
	if s.finder != nil {
		return s.finder.at()
	}
	return strings.Join(s.Endpoints, ",")
}

// String lists the settings as a settings file would, without the secrets.
func (s Settings) String() string {
	var b strings.Builder
	for _, f := range fields {
		fmt.Fprintf(&b, "%s: %s\n", f.Name, f.value.show(&s))
	}
	return b.String()
}

// Format prints what [Settings.String] does for every verb of package fmt.
func (s Settings) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }
