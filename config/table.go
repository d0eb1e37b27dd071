package config

import (
	"time"

	"github.com/berthhq/berth/internal/access"
)

// fields is the table of all settings. No other place lists them.
var fields = []Field{
	{
		Name: "log_level", Group: Common, Default: "info",
		Usage: "log messages of `LEVEL` and above",
		Must:  "trace, debug, info, warn or error",
		value: typed[string]{func(s *Settings) *string { return &s.LogLevel }, oneOf("trace", "debug", "info", "warn", "error")},
	},
	{
		Name: "log_format", Group: Common, Default: "text",
		Usage: "`FORMAT` of the log: text or json",
		Must:  "text or json",
		value: typed[string]{func(s *Settings) *string { return &s.LogFormat }, oneOf("text", "json")},
	},

	{
		Name: "endpoints", Group: Etcd, Default: defaultEndpoint, computed: "the socket of 'berth dev' in .berth or of a server on this host, or else 127.0.0.1:2379",
		Usage: "`ADDRESSES` of the etcd members, separated by commas",
		Must:  "different addresses of etcd such as 10.0.0.1:2379, https://etcd-1:2379 or unix:///var/lib/berth/etcd/etcd.sock, separated by commas",
		value: typed[[]string]{func(s *Settings) *[]string { return &s.Endpoints }, parseEndpoints},
	},
	{
		Name: "prefix", Group: Etcd, Default: "/berth/",
		Usage: "`PREFIX` of all keys in etcd",
		Must:  "a path such as /berth/ of letters, digits, '.', '_', '-' and slashes, at most 200 bytes",
		value: typed[string]{func(s *Settings) *string { return &s.Prefix }, parsePrefix},
	},
	{
		Name: "cacert", Group: Etcd,
		Usage: "PEM `FILE` with the authorities that sign the certificates of etcd",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.CACert }, parsePath},
	},
	{
		Name: "cert", Group: Etcd,
		Usage: "PEM `FILE` with the client certificate for etcd",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.Cert }, parsePath},
	},
	{
		Name: "key", Group: Etcd,
		Usage: "PEM `FILE` with the key of the client certificate for etcd",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.Key }, parsePath},
	},
	{
		Name: "user", Group: Etcd, secret: true,
		Usage: "`NAME` of the etcd user, or NAME:PASSWORD",
		Must:  "NAME or NAME:PASSWORD",
		value: typed[string]{func(s *Settings) *string { return &s.User }, parseUser},
	},
	{
		Name: "password", Group: Etcd, NoFlag: true, secret: true,
		Usage: "password of the etcd user",
		Must:  "a text without line breaks",
		value: typed[Secret]{func(s *Settings) *Secret { return &s.Password }, parseSecret},
	},
	{
		Name: "password_file", Group: Etcd,
		Usage: "`FILE` with the password of the etcd user",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.passwordFile }, parsePath},
	},

	{
		Name: "sidecar", Group: Access,
		Usage: "`ADDRESS` of the sidecar to use",
		Must:  "an address such as http://127.0.0.1:7420, https://host:7420 or unix:///run/berth/berth.sock",
		value: typed[string]{func(s *Settings) *string { return &s.Sidecar }, parseSidecar},
	},
	{
		Name: "sidecar_cacert", Group: Access,
		Usage: "PEM `FILE` with the authorities that sign the certificate of the sidecar",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.SidecarCACert }, parsePath},
	},
	{
		Name: "sidecar_cert", Group: Access,
		Usage: "PEM `FILE` with the client certificate for the sidecar, or for a proxy in front of it",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.SidecarCert }, parsePath},
	},
	{
		Name: "sidecar_key", Group: Access,
		Usage: "PEM `FILE` with the key of the client certificate for the sidecar",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.SidecarKey }, parsePath},
	},
	{
		Name: "token", Group: Access, NoFlag: true, secret: true,
		Usage: "token to send to the sidecar over TCP",
		Must:  aToken,
		value: typed[Secret]{func(s *Settings) *Secret { return &s.Token }, parseToken},
	},
	{
		Name: "token_file", Group: Access,
		Usage: "`FILE` with the token to send to the sidecar over TCP",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.tokenFile }, parsePath},
	},
	{
		Name: "insecure", Group: Access, Default: "false",
		Usage: "send the token over plain HTTP to another host, where others may read it",
		Must:  "true or false",
		value: typed[bool]{func(s *Settings) *bool { return &s.Insecure }, parseSwitch},
	},

	{
		Name: "claim_timeout", Group: Claims, Default: "10m",
		Usage: "longest `TIME` that a claim, or a step instance that a worker has taken, waits for slots",
		Must:  aDuration,
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.ClaimTimeout }, parseDuration},
	},
	{
		Name: "claim_poll_interval", Group: Claims, Default: "1s",
		Usage: "`TIME` after which waiting claims are checked even without an event; at most 5s, which is also what 0 means",
		Must:  aDuration,
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.ClaimPollInterval }, parseDuration},
	},
	{
		Name: "claim_poll_jitter", Group: Claims, Default: "500ms",
		Usage: "add a random time of up to `TIME` to claim_poll_interval; 0 for none",
		Must:  aDuration,
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.ClaimPollJitter }, parseDuration},
	},

	{
		Name: "host", Group: Instance, computed: "the name of a server, otherwise the host name of the machine",
		Usage: "unique `NAME` of this host",
		Must:  "1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit",
		value: typed[string]{func(s *Settings) *string { return &s.Host }, parseHost},
	},
	{
		Name: "state_dir", Group: State, computed: "/var/lib/berth/HOST for root, otherwise ~/.local/state/berth/HOST",
		Usage: "`DIR` with the state that lets a restarted process keep its claims",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.StateDir }, parsePath},
	},

	{
		Name: "listen", Group: Serve, Default: "127.0.0.1:7420",
		Usage: "serve at HTTP `ADDRESS`; port 0 chooses a free port",
		Must:  "an address such as 127.0.0.1:7420, or empty",
		value: typed[string]{func(s *Settings) *string { return &s.Listen }, optional(parseAddress)},
	},
	{
		Name: "socket", Group: Serve,
		Usage: "serve at the unix socket `PATH`",
		Must:  "an absolute path of at most 99 bytes, or empty",
		value: typed[string]{func(s *Settings) *string { return &s.Socket }, optional(parseSocket)},
	},
	{
		Name: "socket_mode", Group: Serve, Default: "0660",
		Usage: "`MODE` of the unix socket",
		Must:  "0600 (its user), 0660 (its user and group) or 0666 (all users)",
		value: typed[Mode]{func(s *Settings) *Mode { return &s.SocketMode }, parseMode},
	},
	{
		Name: "socket_group", Group: Serve, computed: "the group of the process",
		Usage: "`GROUP` of the unix socket, by name or number",
		Must:  "the name or number of a group, or empty",
		value: typed[string]{func(s *Settings) *string { return &s.SocketGroup }, optional(parseGroup)},
	},
	{
		Name: "roles", Group: Serve,
		Usage: "`RULES` that give roles to identities, separated by commas",
		Must:  `rules of a subject and its roles, such as "group:etl view claim:etl-*", separated by commas`,
		value: typed[[]string]{func(s *Settings) *[]string { return &s.Roles }, parseRules},
	},
	{
		Name: "max_unfinished_runs", Group: Serve, Default: "10000",
		Usage: "runs of one identity that have not ended, at most `NUMBER`",
		Must:  "a number from 1 to 1000000",
		value: typed[int]{func(s *Settings) *int { return &s.MaxUnfinishedRuns }, numberFrom(1, 1_000_000)},
	},
	{
		Name: "max_stored_run_data", Group: Serve, Default: "256MiB",
		Usage: "data of the runs of one identity in etcd, with the events of their attempts, until they are deleted, at most `SIZE`",
		Must:  "a size such as 256MiB, from 1MiB to 64GiB",
		value: typed[Size]{func(s *Settings) *Size { return &s.MaxStoredRunData }, sizeFrom(1<<20, 64<<30)},
	},
	{
		Name: "max_not_before", Group: Serve, Default: "8784h",
		Usage: "not_before of a run or step is at most `TIME` ahead",
		Must:  "a duration from 1h to 87840h",
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.MaxNotBefore }, durationFrom(time.Hour, 87840*time.Hour)},
	},
	{
		Name: "tokens_file", Group: Serve,
		Usage: "`FILE` with the tokens of HTTP clients: see 'berth token'",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.TokensFile }, parsePath},
	},
	{
		Name: "tls_cert", Group: Serve,
		Usage: "PEM `FILE` with the certificate of the HTTP address",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.TLSCert }, parsePath},
	},
	{
		Name: "tls_key", Group: Serve,
		Usage: "PEM `FILE` with the key of the certificate of the HTTP address",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.TLSKey }, parsePath},
	},
	{
		Name: "client_ca", Group: Serve,
		Usage: "PEM `FILE` with the authorities that sign the certificates of HTTP clients",
		Must:  anyPath,
		value: typed[string]{func(s *Settings) *string { return &s.ClientCA }, parsePath},
	},

	{
		Name: "coordinator", Group: Candidate, Default: "false",
		Usage: "run a coordinator, too",
		Must:  "true or false",
		value: typed[bool]{func(s *Settings) *bool { return &s.Coordinator }, parseSwitch},
	},
	{
		Name: "tick_interval", Group: Lead, Default: "250ms",
		Usage: "longest `TIME` between two ticks of the coordinator",
		Must:  "a duration from 10ms to 10s",
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.TickInterval }, durationFrom(10*time.Millisecond, 10*time.Second)},
	},
	{
		Name: "start_timeout", Group: Lead, Default: "180s",
		Usage: "longest `TIME` that an admitted run waits for its executor to start it",
		Must:  "a duration from 1s to 24h",
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.StartTimeout }, durationFrom(time.Second, 24*time.Hour)},
	},
	{
		Name: "run_retention", Group: Lead, Default: "24h",
		Usage: "keep ended runs, and events, for `TIME`",
		Must:  "a duration from 1m to 8760h",
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.RunRetention }, durationFrom(time.Minute, year)},
	},
	{
		Name: "max_run_events", Group: Lead, Default: "500",
		Usage: "events of one run in etcd, at most `NUMBER`",
		Must:  "a number from 100 to 100000",
		value: typed[int]{func(s *Settings) *int { return &s.MaxRunEvents }, numberFrom(100, 100_000)},
	},
	{
		Name: "compact_interval", Group: Lead, Default: "5m",
		Usage: "the coordinator compacts etcd history older than `TIME`, also of other programs that use this etcd; 0 for never",
		Must:  "a duration from 1m to 24h, or 0",
		value: typed[time.Duration]{func(s *Settings) *time.Duration { return &s.CompactInterval }, orZero(durationFrom(time.Minute, 24*time.Hour))},
	},

	{
		Name: "commands_from", Group: Work, Default: access.Everything,
		Usage: "`IDENTITIES` of submitters whose commands the worker runs, separated by commas",
		Must:  "identities such as user:alice, token:ci or etcd:* (* is any text), separated by commas, or * for all",
		value: typed[[]string]{func(s *Settings) *[]string { return &s.CommandsFrom }, parseIdentities},
	},

	{
		Name: "name", Group: Server, computed: "the name of the host",
		Usage: "`NAME` of this server in its cluster",
		Must:  "1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit",
		value: typed[string]{func(s *Settings) *string { return &s.Name }, parseHost},
	},
	{
		Name: "cluster", Group: Server, computed: "this server alone",
		Usage: "`MEMBERS` of the cluster, each as NAME=https://HOST:PORT, separated by commas",
		Must:  "1 to 9 members such as a=https://10.0.0.1:7423,b=https://10.0.0.2:7423, with different names and addresses, either all with https or all with http",
		value: typed[Cluster]{func(s *Settings) *Cluster { return &s.Cluster }, parseCluster},
	},
	{
		Name: "data_dir", Group: Dev, Default: devDataDir, computed: ".berth for dev, /var/lib/berth for server",
		Usage: "`DIR` with the data of the embedded etcd",
		Must:  "a path",
		value: typed[string]{func(s *Settings) *string { return &s.DataDir }, parseSomePath},
	},
	{
		Name: "etcd_listen", Group: Dev, Default: "127.0.0.1:2379", computed: "127.0.0.1:2379, or port 2379 of the host of the server; a server alone without cert listens only at a socket in data_dir",
		Usage: "`ADDRESS` of the embedded etcd for clients; with dev, port 0 chooses a free port. All servers of a cluster need the same port",
		Must:  "an address such as 127.0.0.1:2379, with an IP address or localhost",
		value: typed[string]{func(s *Settings) *string { return &s.EtcdListen }, parseEtcdListen},
	},
}

// Descriptions of values that several fields share.
const (
	anyPath   = "a path, or empty"
	aDuration = "a duration such as 30s, 5m or 1h30m, from 0 to a year"
	aToken    = "16 to 256 visible ASCII characters, or empty"
)
