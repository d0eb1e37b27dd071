package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/certs"
	"github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

func clusterCommand() *cli.Command {
	force := &cli.BoolFlag{Name: "force", Usage: "remove the member even if it answers"}
	member := argument{name: "the name of a member"}
	return &cli.Command{
		Name:     "cluster",
		Category: operating,
		Usage:    "show and maintain the members of etcd",
		Description: `These commands work with the etcd of 'berth server' and with any other etcd. All of them except
restore need the addresses of members (--endpoints, or cluster in the settings file).`,
		Subcommands: []*cli.Command{
			{
				Name: "status", Usage: "show the members: leader, size, lag and alarms", Action: onCluster(clusterStatus),
				Description: `LAG is the number of changes that the leader has applied and the member has not. SIZE is the
size of the database file, USED the part in use. 'berth cluster defrag' returns the rest to the
file system. Above QUOTA, etcd refuses writes.

The exit code is 0 if all members are healthy and report no alarm, otherwise 1.`,
			},
			{
				Name: "member", Usage: "replace or remove a member",
				Subcommands: []*cli.Command{
					{
						Name: "replace", Usage: "replace a member with a new server", ArgsUsage: "NAME [URL]",
						Flags: []cli.Flag{
							force,
							&cli.BoolFlag{Name: "free", Usage: "free what the host of the member still holds, if it has not been seen for 10 s, even if its holders still run"},
							&cli.StringFlag{Name: "of", Usage: "`HOST` of the member, as in 'berth hosts list'", DefaultText: "NAME"},
						},
						Description: `Removes the member, and adds a new member at URL, such as https://10.0.0.4:7423, or at the same
address if URL is not given. Then start 'berth server' there with an empty data directory. Until
it has started, the command can be repeated, also with another URL.

It also lists what the host of the member still holds. That is free when the leases end; until
then, the sidecar of a server that has the name of the host and not its state directory is not
ready. With --free it is freed now. Its holders may still run then: what a pool of one slot
guards can refuse their fencing tokens. If the member answers, --free only frees.`,
						Action: changesCluster(memberReplace, member, argument{name: "the address of the new member", optional: true, check: checkPeer}),
					},
					{
						Name: "remove", Usage: "remove a member for good", ArgsUsage: "NAME", Flags: []cli.Flag{force},
						Action: changesCluster(memberRemove, member),
					},
				},
			},
			{
				Name: "snapshot", Usage: "write a snapshot of all data to a file", ArgsUsage: "FILE",
				Action: onCluster(clusterSnapshot, argument{name: "the name of a file"}),
			},
			{
				Name: "restore", Usage: "create the data of a new cluster from a snapshot, on one server", ArgsUsage: "FILE",
				Flags: append(config.Flags(config.Server, config.Dev, config.Instance),
					&cli.Uint64Flag{Name: "bump-revision", Value: cluster.DefaultBump, Usage: "continue `NUMBER` revisions after those of the snapshot; must be more than were written since"}),
				Description: `Stop all servers, and move the folder etcd out of the data directory of each. Run this on one
server, with its settings, and start that server. Then start the others: they join it.

Fencing tokens continue to grow, since revisions do. Claims are those of the snapshot: stop all
jobs first.`,
				Action: handle(clusterRestore, argument{name: "the name of a file"}),
			},
			clusterSpaceCommand(),
			{
				Name: "defrag", Usage: "return free space of the databases to the disk, one member at a time",
				Description: `A member answers no requests while it is defragmented; the leader is the last one. Learners are
skipped. If there is space again, the command also clears the NOSPACE alarm.`,
				Action: changesCluster(clusterDefrag),
			},
			clusterUsersCommand(),
			{
				Name: "upgrade", Usage: "check a cluster before an upgrade",
				Subcommands: []*cli.Command{{
					Name: "check", Usage: "report whether the servers can be upgraded to this build",
					Description: "Run it with the new build. The exit code is 0 if the servers can be upgraded to it, one at a\ntime, otherwise 1.",
					Action:      onCluster(upgradeCheck),
				}},
			},
		},
	}
}

// onCluster is [handle] for commands that operate an etcd.
func onCluster(do func(*request, *cluster.Client) error, arguments ...argument) cli.ActionFunc {
	return clusterAction(false, do, arguments)
}

// changesCluster is [onCluster] for commands that change the etcd.
func changesCluster(do func(*request, *cluster.Client) error, arguments ...argument) cli.ActionFunc {
	return clusterAction(true, do, arguments)
}

func clusterAction(changes bool, do func(*request, *cluster.Client) error, arguments []argument) cli.ActionFunc {
	return handle(func(r *request) error {
		s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Etcd)
		if err != nil {
			return err
		}
		if changes {
			if err := (way{r: r}).changeCluster(s); err != nil {
				return err
			}
		}
		c, err := dialCluster(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
		if err != nil {
			return err
		}
		defer c.Close()
		return do(r, c)
	}, arguments...)
}

// changeCluster refuses a sidecar for a command that changes etcd, and reports which etcd it changes.
func (w way) changeCluster(s config.Settings) error {
	if err := w.refuseSidecar(); err != nil {
		return err
	}
	w.r.changes = true
	w.say("etcd at " + s.EtcdAt())
	return nil
}

func dialCluster(s config.Settings, log hclog.Logger) (*cluster.Client, error) {
	tls, err := s.ClientTLS(log)
	if err != nil {
		return nil, err
	}
	return cluster.Dial(cluster.Config{Endpoints: s.Endpoints, Dial: s.Dial(), TLS: tls, Username: s.User, Password: s.Password.Reveal()})
}

// checkPeer returns an error unless the text is the address of a member for the other members.
func checkPeer(address string) error {
	if !config.IsPeerURL(address) {
		return ofLine(problem.Field("url", "%s is not the address of a member: write http://HOST:PORT or https://HOST:PORT", problem.Quote(address)))
	}
	return nil
}

func clusterStatus(r *request, c *cluster.Client) error {
	slow := time.AfterFunc(firstEtcdReport, func() { r.say("waiting for etcd: not all members have answered yet") })
	s, err := c.Status(r.ctx())
	slow.Stop()
	if err != nil {
		return err
	}
	if err := r.print(s, func(out *page) { clusterTable(out, s) }); err != nil {
		return err
	}
	if !s.IsHealthy() {
		return status(problem.ExitFailure)
	}
	return nil
}

func clusterTable(out *page, s *cluster.Status) {
	var rows [][]string
	for _, m := range s.Members {
		role := ""
		if m.Leader {
			role = "leads"
		}
		peers := strings.Join(m.PeerURLs, ",")
		if peers == embed.AloneURL {
			peers = "" // it listens to no other members
		}
		row := []string{m.Name, m.ID, m.Status, role, peers, m.Version, "", "", "", "", strings.Join(m.Alarms, ", "), m.Trouble}
		if m.Version != "" {
			row[6], row[7], row[8] = bytesText(m.DBBytes), bytesText(m.UsedBytes), bytesText(m.QuotaBytes)
			row[9] = fmt.Sprint(m.Lag)
		}
		rows = append(rows, row)
	}
	out.table("there is no member", []string{"MEMBER", "ID", "STATUS", "LEADER", "PEER ADDRESS", "ETCD", "SIZE", "USED", "QUOTA", "LAG", "ALARMS", "TROUBLE"}, rows)
	out.gap()
	out.line("%d of %s; a majority is %d", s.Healthy, text.Count(s.Voters, "voting member")+" healthy", s.Majority())
	if s.Trouble != "" {
		out.line("%s", s.NoMajority("claims wait"))
	}
}

func bytesText(n int64) string {
	if n == 0 {
		return ""
	}
	return humanize.IBytes(uint64(n))
}

// replaced is what 'berth cluster member replace' has done.
type replaced struct {
	*cluster.Replacement
	// Left is what the host of the member held, and Freed whether it was freed.
	Left  *inspect.HostLeft `json:"left,omitempty"`
	Freed bool              `json:"freed"`
}

func memberReplace(r *request, c *cluster.Client) error {
	at, name, free := "", r.args[0], r.Bool("free")
	if len(r.args) > 1 {
		at = r.args[1]
	}
	host := cmp.Or(r.String("of"), name)
	if err := pool.ValidateName(host); err != nil {
		return ofLine(problem.Field("of", "%s is not the name of a host", problem.Quote(host)))
	}
	done := replaced{Freed: free}
	var err error
	if !free || r.Bool("force") || mustReplace(r.ctx(), c, name) {
		if done.Replacement, err = c.Replace(r.ctx(), name, at, r.Bool("force")); err != nil {
			return err
		}
	}
	err = r.connect(func() error {
		if free {
			done.Left, err = r.FreeHost(r.ctx(), host)
		} else {
			done.Left, err = r.Left(r.ctx(), host)
		}
		return err
	})
	if done.Replacement == nil && err != nil {
		return err
	}
	return errors.Join(r.print(done, func(out *page) { replacedText(out, name, host, done) }), err)
}

// mustReplace reports whether a member is to be replaced by a command that also frees what its host held: not
// if it answers.
func mustReplace(ctx context.Context, c *cluster.Client, name string) bool {
	s, err := c.Status(ctx)
	if err != nil {
		return true // the replacement says what is wrong
	}
	m, err := s.Find(name)
	return err != nil || m.Status == cluster.Unreachable
}

func replacedText(out *page, name, host string, done replaced) {
	if m := done.Replacement; m != nil {
		if m.Before {
			out.line("the replacement of member %s is prepared: a learner was added at %s, and has not started", name, m.PeerURLs[0])
		} else {
			out.line("removed member %s, and added a learner at %s", name, m.PeerURLs[0])
		}
		out.line("now start the server there with an empty data directory, its other settings, and 'berth server --name %s --cluster %s'", name, m.Cluster)
	}
	left := done.Left
	if left == nil {
		return
	}
	if left.Leases == 0 {
		out.line("host %s holds nothing", host)
		return
	}
	var rows [][]string
	for _, c := range left.Claims {
		rows = append(rows, []string{c.Claim, c.Instance, run.PoolList(c.Pools), fmt.Sprint(c.Fence)})
	}
	claims := func() {
		if len(rows) > 0 {
			out.table("", []string{"CLAIM", "INSTANCE", "POOLS", "FENCE"}, rows)
		}
	}
	if !done.Freed {
		out.line("host %s still holds %s", host, left.Summary())
		claims()
		if len(left.Running) > 0 {
			out.line("processes of the host were seen within 10 s: %s", strings.Join(left.Running, ", "))
		}
		out.line("it is free when the leases end, or now with '%s', even if its holders still run", freeCommand(name, host))
		return
	}
	out.line("freed what host %s held: %s", host, left.Summary())
	claims()
	if len(left.Claims) > 0 {
		out.line("the holders of these claims may still run: their fencing tokens may still be in use: %s", left.Tokens())
	}
}

// freeCommand returns the command that frees what the host of a member still holds.
func freeCommand(name, host string) string {
	command := "berth cluster member replace " + name + " --free"
	if host != name {
		command += " --of " + host
	}
	return command
}

func memberRemove(r *request, c *cluster.Client) error {
	m, err := c.Remove(r.ctx(), r.args[0], r.Bool("force"))
	if err != nil {
		return err
	}
	return r.print(m, func(out *page) { out.line("removed member %s", r.args[0]) })
}

func clusterSnapshot(r *request, c *cluster.Client) error {
	s, err := c.Save(r.ctx(), r.args[0])
	if err != nil {
		return err
	}
	return r.print(s, func(out *page) {
		out.line("wrote %s: %s at revision %d, %s, etcd %s", s.File, text.Count(s.Keys, "key"), s.Revision, humanize.IBytes(uint64(s.Bytes)), s.Version)
	})
}

func clusterRestore(r *request) error {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Etcd, config.Server, config.Dev, config.Instance)
	if err != nil {
		return err
	}
	self, _ := membersOf(s)
	bump := r.Uint64("bump-revision")
	if bump == 0 {
		return usagef("--bump-revision can't be 0: fencing tokens would be issued twice")
	}
	dir := filepath.Join(s.DataDir, config.EtcdFolder)
	if info, err := os.Stat(r.args[0]); err != nil || info.IsDir() {
		return ofLine(problem.Field("file", "there is no file %s", problem.Quote(r.args[0])))
	}
	done, err := cluster.Restore(r.args[0], dir, self, bump)
	if err != nil {
		return etcdFault(err, "")
	}
	return r.print(done, func(out *page) {
		out.line("restored %s to %s. Start this server now. When it is ready, start the others, with their folder etcd moved out of their data directories: keep the folder state", text.Count(done.Keys, "key"), dir)
	})
}

func clusterDefrag(r *request, c *cluster.Client) error {
	all := struct {
		Members []cluster.Defragmented `json:"members"`
	}{}
	if err := c.Defrag(r.ctx(), func(d cluster.Defragmented) { all.Members = append(all.Members, d) }); err != nil {
		return err
	}
	return r.print(all, func(out *page) {
		var rows [][]string
		for _, d := range all.Members {
			if d.Skipped == "" {
				rows = append(rows, []string{d.Name, bytesText(d.Before), bytesText(d.After)})
			}
		}
		out.table("no member was defragmented", []string{"MEMBER", "BEFORE", "AFTER"}, rows)
		skippedLines(out, all.Members)
	})
}

// skippedLines names the members that were not defragmented.
func skippedLines(out *page, members []cluster.Defragmented) {
	for _, d := range members {
		if d.Skipped != "" {
			out.line("did not defragment %s: %s", d.Name, d.Skipped)
		}
	}
}

func upgradeCheck(r *request, c *cluster.Client) error {
	s, err := c.Status(r.ctx())
	if err != nil {
		return err
	}
	layout, err := layoutCheck(r)
	if err != nil {
		return err
	}
	checks := struct {
		Checks []cluster.Check `json:"checks"`
	}{append(cluster.CheckUpgrade(s), layout)}
	failed := false
	if err := r.print(checks, func(out *page) {
		var rows [][]string
		for _, check := range checks.Checks {
			state := "ok"
			if !check.OK {
				state = "NOT OK"
			}
			rows = append(rows, []string{check.Name, state, check.Detail})
		}
		out.table("", []string{"CHECK", "RESULT", "DETAIL"}, rows)
	}); err != nil {
		return err
	}
	for _, check := range checks.Checks {
		failed = failed || !check.OK
	}
	if failed {
		return status(problem.ExitFailure)
	}
	return nil
}

func certsCommand() *cli.Command {
	dir := &cli.StringFlag{Name: "dir", Value: "certs", Usage: "`DIR` with the authority"}
	lifetime := func(d cli.DurationFlag) cli.Flag {
		d.Name, d.Usage = "lifetime", "`TIME` until the certificate expires"
		return &d
	}
	return &cli.Command{
		Name:     "certs",
		Category: serving,
		Usage:    "create the certificates of a cluster of 'berth server'",
		Subcommands: []*cli.Command{
			{
				Name:  "init",
				Usage: "create an authority that signs certificates",
				Flags: []cli.Flag{dir, lifetime(cli.DurationFlag{Value: certs.DefaultAuthorityLifetime, DefaultText: "10 years"})},
				Description: `Writes ca.crt, which all hosts need, and ca.key, which signs certificates: anyone who has that
key can read and write everything. Keep it on a machine that is not a server, and back it up.`,
				Action: handle(certsInit),
			},
			{
				Name:      "issue",
				Usage:     "issue a certificate for a server or a client",
				ArgsUsage: "NAME",
				Flags: []cli.Flag{
					dir,
					&cli.StringFlag{Name: "hosts", Usage: "`NAMES` and IP addresses of a server, separated by commas", DefaultText: "none, for the certificate of a client"},
					&cli.StringFlag{Name: "out", Usage: "write the files to `DIR`", DefaultText: "the directory of the authority"},
					lifetime(cli.DurationFlag{Value: certs.DefaultLifetime, DefaultText: "1 year"}),
					&cli.BoolFlag{Name: "renew", Usage: "replace the files if they exist; without --hosts, the certificate keeps the hosts of the old one"},
				},
				Description: `Writes NAME.crt and NAME.key. With --hosts, the certificate is for a server, which is also a
client of the other servers. Without --hosts, it is for a client: a sidecar or a worker on
another host, or an operator. NAME is the identity of the client.

A process reads its certificate again when the files change, so a renewal needs no restart.`,
				Action: handle(certsIssue, argument{name: "the name of the server or client", check: certs.ValidateName}),
			},
			{
				Name:  "make",
				Usage: "create a missing authority, and missing certificates of servers and clients",
				Flags: []cli.Flag{
					dir,
					&cli.StringFlag{Name: "out", Usage: "write the certificates to `DIR`, and a copy of ca.crt", DefaultText: "the directory of the authority"},
					&cli.StringSliceFlag{Name: "server", Usage: "create the certificate of a server: `NAME=HOST`, or NAME=HOST,HOST…; may be repeated"},
					&cli.StringSliceFlag{Name: "client", Usage: "create the certificate of the client `NAME`; may be repeated"},
					lifetime(cli.DurationFlag{Value: certs.DefaultLifetime, DefaultText: "1 year; 10 years for an authority"}),
				},
				Description: `For scripts and containers: a second run keeps certificates that are still good. It replaces
certificates that expire within 30 days, that lack a host, or that another authority signed.`,
				Action: handle(certsMake),
			},
		},
	}
}

// issued names the files of a new certificate; it is printed as JSON.
type issued struct {
	certs.Pair
	// Authority is the file of the authority's certificate.
	Authority string `json:"cacert,omitempty"`
}

// ofCerts is [ofLine] of the flags of certificates. Other problems are of the folder.
func ofCerts(err error) error {
	if p := problem.Of(err); p.Field == "lifetime" || p.Field == "hosts" {
		return ofLine(err)
	}
	return err
}

func certsInit(r *request) error {
	if r.String("dir") == "" {
		return usagef("--dir is empty")
	}
	pair, err := certs.Init(r.String("dir"), r.Duration("lifetime"))
	if err != nil {
		return ofCerts(err)
	}
	return r.print(issued{Pair: pair}, func(out *page) { out.line("created the authority %s with the key %s", pair.CertFile, pair.KeyFile) })
}

func certsIssue(r *request) error {
	dir := r.String("dir")
	a, err := certs.Open(dir)
	if err != nil {
		return err
	}
	req := certs.Request{Name: r.args[0], Lifetime: r.Duration("lifetime")}
	if hosts := r.String("hosts"); hosts != "" {
		req.Hosts = strings.Split(hosts, ",")
	}
	pair, err := a.Issue(req, cmp.Or(r.String("out"), dir), r.Bool("renew"))
	if err != nil {
		return ofCerts(err)
	}
	files := issued{Pair: pair, Authority: filepath.Join(dir, certs.AuthorityCert)}
	return r.print(files, func(out *page) {
		out.columns([][]string{{"cacert", files.Authority}, {"cert", pair.CertFile}, {"key", pair.KeyFile}})
	})
}

func certsMake(r *request) error {
	var all []certs.Request
	for _, server := range r.StringSlice("server") {
		name, hosts, ok := strings.Cut(server, "=")
		if !ok || hosts == "" {
			return usagef("--server can't be %q: write NAME=HOST, or NAME=HOST,HOST…", server)
		}
		all = append(all, certs.Request{Name: name, Hosts: strings.Split(hosts, ","), Lifetime: r.Duration("lifetime")})
	}
	for _, name := range r.StringSlice("client") {
		all = append(all, certs.Request{Name: name, Lifetime: r.Duration("lifetime")})
	}
	for _, one := range all {
		if err := certs.ValidateName(one.Name); err != nil {
			return ofLine(err)
		}
	}
	if len(all) == 0 {
		return usagef("--server and --client are missing: name at least one certificate")
	}
	dir := r.String("dir")
	out := cmp.Or(r.String("out"), dir)
	made, err := certs.Make(dir, out, certs.DefaultAuthorityLifetime, all)
	if err != nil {
		return ofCerts(err)
	}
	return r.print(struct {
		Made []string `json:"made"`
	}{made}, func(p *page) {
		p.line("created %d of %s in %s", len(made), text.Count(len(all), "certificate"), out)
	})
}
