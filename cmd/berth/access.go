package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
)

func authCommand() *cli.Command {
	return &cli.Command{
		Name:     "auth",
		Category: operating,
		Usage:    "show who you are to a sidecar, and what you may do there",
		Subcommands: []*cli.Command{
			{
				Name: "whoami", Usage: "show the identity and the roles that the sidecar gives you", Flags: config.Flags(config.Access),
				Action: handle(authWhoami),
			},
			{
				Name: "can", Usage: "report whether you have a role", ArgsUsage: "ROLE [POOL|QUEUE]", Flags: config.Flags(config.Access),
				Description: `Prints yes and exits with 0, or prints no and exits with 1. The roles are view, claim, submit,
command, execute, operate and admin. Without the name of a pool or queue the role must be for
all. What is your own you may always renew, release and cancel.`,
				Action: handle(authCan, argument{name: "a role", check: checkRole}, argument{name: "the name of a pool or queue", check: pool.ValidateName, optional: true}),
			},
		},
	}
}

// whoami asks the sidecar of the settings.
func whoami(r *request) (*api.Identity, error) {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Access)
	if err != nil {
		return nil, err
	}
	if s.Sidecar == "" {
		return nil, usagef("--sidecar is missing: give the address of the sidecar, or set BERTH_SIDECAR. Directly on etcd, the rights of the user of etcd count")
	}
	client, err := dialSidecar(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(r.ctx(), sidecarTimeout)
	defer cancel()
	id, err := client.Whoami(ctx)
	if err != nil {
		return nil, sidecarProblem(err, s.Sidecar)
	}
	return id, nil
}

func authWhoami(r *request) error {
	id, err := whoami(r)
	if err != nil {
		return err
	}
	return r.print(id, func(out *page) {
		rows := [][]string{
			{"identity", id.Identity}, {"names", strings.Join(id.Names, ", ")}, {"roles", cmp.Or(strings.Join(id.Roles, ", "), "none")}, {"from", id.From},
		}
		out.columns(keep(rows, func(row []string) bool { return row[1] != "" }))
	})
}

// checkRole refuses the names of roles that do not exist.
func checkRole(name string) error {
	if g, err := access.ParseGrant(name); err != nil || string(g.Role) != name {
		return usagef("invalid role %s: use %s", problem.Quote(name), access.RoleNames())
	}
	return nil
}

func authCan(r *request) error {
	id, err := whoami(r)
	if err != nil {
		return err
	}
	role, thing := access.Role(r.args[0]), access.Everything
	if len(r.args) > 1 {
		thing = r.args[1]
		if role.Of() == "" {
			return usagef("the role %s is not for a pool or queue", role)
		}
	}
	grants, err := access.ParseGrants(id.Roles)
	if err != nil {
		return problem.New(problem.Internal, "the sidecar has answered roles that this berth does not know: %w", err)
	}
	can := grants.Allow(role, thing)
	err = r.print(struct {
		Can bool `json:"can"`
	}{can}, func(out *page) { out.line("%s", map[bool]string{true: "yes", false: "no"}[can]) })
	if err == nil && !can {
		err = &statusError{problem.ExitFailure, fmt.Errorf("%s has the roles %s", id.Identity, cmp.Or(strings.Join(id.Roles, ", "), "none"))}
	}
	return err
}

func tokenCommand() *cli.Command {
	return &cli.Command{
		Name:     "token",
		Category: operating,
		Usage:    "create, list and revoke the tokens of HTTP clients",
		Description: `The commands change the file of tokens (--tokens-file) on this machine. Servers that have the
file use the change within a second. Its roles say what the bearer of a token may do.`,
		Subcommands: []*cli.Command{
			{
				Name:      "create",
				Usage:     "create a token, and print its secret",
				ArgsUsage: "NAME",
				Description: `The secret is printed once: the file keeps only a hash of it. Clients give it in BERTH_TOKEN or
BERTH_TOKEN_FILE, or send it as Authorization: Bearer SECRET.

The roles are view, claim[:POOL], submit[:QUEUE], command[:QUEUE], execute[:QUEUE],
operate[:POOL] and admin. In the name of a pool or queue, * is any text; without a name the
role is for all.`,
				Flags: append(tokensFileFlag(),
					&cli.StringSliceFlag{Name: "role", Usage: "give the bearer the `ROLE`, such as view or claim:etl-*; may be repeated"},
					&cli.DurationFlag{Name: "expires", Usage: "the token ends after `TIME`, such as 720h", DefaultText: "it never ends"}),
				Action: handle(tokenCreate, tokenArgument),
			},
			{Name: "list", Usage: "list the tokens", Flags: tokensFileFlag(), Action: handle(tokenList)},
			{
				Name: "revoke", Usage: "revoke a token", ArgsUsage: "NAME", Flags: tokensFileFlag(),
				Action: handle(tokenRevoke, tokenArgument),
			},
		},
	}
}

var tokenArgument = argument{name: "the name of a token"}

// tokensFileFlag is the flag of the setting tokens_file alone, of those of a server.
func tokensFileFlag() []cli.Flag {
	return slices.DeleteFunc(config.Flags(config.Serve), func(f cli.Flag) bool { return f.Names()[0] != "tokens-file" })
}

// tokensPath returns the path of the file of tokens.
func tokensPath(r *request) (string, error) {
	s, err := config.Load(config.FromCLI(r.Context), config.Common)
	if err == nil && s.TokensFile == "" {
		err = usagef("--tokens-file is missing: give the file of tokens, or set tokens_file")
	}
	return s.TokensFile, err
}

// tokenRecord is a token in JSON.
type tokenRecord struct {
	Name    string     `json:"name"`
	Roles   []string   `json:"roles"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`
	Expired bool       `json:"expired,omitempty"`
	// Token is the secret, when it was created.
	Token string `json:"token,omitempty"`
}

func tokenRecordOf(t access.Token, now time.Time) tokenRecord {
	r := tokenRecord{Name: t.Name, Roles: t.Roles, Created: t.Created, Expired: t.Expired(now)}
	if !t.Expires.IsZero() {
		r.Expires = &t.Expires
	}
	return r
}

func tokenCreate(r *request) error {
	path, err := tokensPath(r)
	if err != nil {
		return err
	}
	grants, err := access.ParseGrants(r.StringSlice("role"))
	switch {
	case err != nil:
		return usagef("--role: %s", problem.Of(err).Message)
	case len(grants) == 0:
		return usagef("--role is missing: give what the token may do, such as view or claim:etl-*")
	}
	now, expires := time.Now(), time.Time{}
	if r.IsSet("expires") {
		expires = now.Add(r.Duration("expires"))
	}
	token, secret, err := access.NewToken(r.args[0], grants, now, expires)
	if err != nil {
		return usagef("%s", problem.Of(err).Message)
	}
	if err := changeTokens(path, os.O_CREATE, func(ts *access.Tokens) error { return ts.Add(token, now) }); err != nil {
		return err
	}
	record := tokenRecordOf(token, now)
	record.Token = secret
	if err := r.print(record, func(out *page) { out.line("%s", secret) }); err != nil {
		return err
	}
	r.say("keep the secret of token %s now: it can't be shown again", token.Name)
	return nil
}

func tokenList(r *request) error {
	path, err := tokensPath(r)
	if err != nil {
		return err
	}
	ts, err := config.ReadTokens(path)
	if err != nil {
		return ofTokens(err)
	}
	records := make([]tokenRecord, len(ts.List))
	rows := make([][]string, len(ts.List))
	for i, t := range ts.List {
		records[i] = tokenRecordOf(t, r.now)
		expires := "never"
		switch {
		case records[i].Expired:
			expires = "expired"
		case !t.Expires.IsZero():
			expires = "in " + text.Duration(t.Expires.Sub(r.now))
		}
		rows[i] = []string{t.Name, strings.Join(t.Roles, " "), text.Ago(r.now, t.Created), expires}
	}
	return r.print(inspect.List[tokenRecord]{Items: records}, func(out *page) {
		out.table("there are no tokens", []string{"NAME", "ROLES", "CREATED", "EXPIRES"}, rows)
	})
}

func tokenRevoke(r *request) error {
	path, err := tokensPath(r)
	if err != nil {
		return err
	}
	name := r.args[0]
	err = changeTokens(path, 0, func(ts *access.Tokens) error {
		found, err := ts.Revoke(name)
		if err == nil && !found {
			err = problem.New(problem.NotFound, "there is no token %s in %s", problem.Quote(name), path)
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.print(struct {
		Name string `json:"name"`
	}{name}, func(out *page) { out.line("token %s revoked", name) })
}

// ofTokens returns a problem of the file of tokens. That it cannot be opened is an error of the command line.
func ofTokens(err error) error {
	p := problem.Field("tokens_file", "%w", err)
	if opened := (*fs.PathError)(nil); errors.As(err, &opened) {
		return ofLine(p)
	}
	return p
}

// changeTokens changes a file of tokens; with os.O_CREATE it makes one if there is none. The
// file is locked for that time, and replaced as a whole: a server never reads half of one.
func changeTokens(path string, flag int, change func(*access.Tokens) error) (err error) {
	file, path, err := lockFile(path, flag)
	if err != nil {
		return ofTokens(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	ts, err := config.ReadTokens(path)
	if err != nil {
		return problem.Field("tokens_file", "%w", err)
	}
	if err := change(&ts); err != nil {
		return err
	}
	data, err := ts.Encode()
	if err == nil {
		err = replaceFile(file, path, data)
	}
	if err != nil {
		return problem.Field("tokens_file", "%w", err)
	}
	return nil
}

// lockFile opens a file and locks it until it is closed. It returns the path without symbolic
// links: what a link leads to is replaced, not the link.
func lockFile(path string, flag int) (*os.File, string, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|flag, 0o600)
		if err != nil {
			return nil, "", err
		}
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			err = retryInterrupted(func() error { return unix.Flock(int(file.Fd()), unix.LOCK_EX) })
		}
		var locked, named fs.FileInfo
		if err == nil {
			locked, err = file.Stat()
		}
		if err == nil {
			named, err = os.Stat(real)
		}
		switch {
		case err == nil && os.SameFile(locked, named):
			return file, real, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, "", errors.Join(err, file.Close())
		}
		// Who had the lock has replaced the file meanwhile.
		if err := file.Close(); err != nil {
			return nil, "", err
		}
	}
}

// retryInterrupted calls do until no signal interrupts it.
func retryInterrupted(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// replaceFile replaces a file that is open. The new one has the mode, the owner and the group
// of the old one: a server of another user must still be able to read it.
func replaceFile(old *os.File, path string, data []byte) error {
	info, err := old.Stat()
	if err != nil {
		return err
	}
	early, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = early.Write(data)
	if owner, ok := info.Sys().(*syscall.Stat_t); err == nil && ok {
		err = early.Chown(int(owner.Uid), int(owner.Gid))
	}
	if err == nil {
		err = early.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = early.Sync()
	}
	if err = errors.Join(err, early.Close()); err == nil {
		err = os.Rename(early.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("%s can't be replaced: %w", path, errors.Join(err, os.Remove(early.Name())))
	}
	return nil
}

func actionsCommand() *cli.Command {
	return &cli.Command{
		Name:     "actions",
		Category: operating,
		Usage:    "see what operators asked for",
		Subcommands: []*cli.Command{{
			Name:   "list",
			Usage:  "list the actions of operators, the newest first",
			Action: onEtcd(actionsList),
			Description: "An action is a change that an operator asked for with a berth command, over HTTP, on\n" +
				"a page or through the Go API: of a pool, a claim, a run, a step instance, a worker or\n" +
				"the limits. BEFORE and AFTER are the state of the object. OUTCOME is done, failed, asked\n" +
				"while the action is under way, or unknown if the process that carried it out ended\n" +
				"first. Actions are kept as long as the events of runs (--run-retention).",
			Flags: []cli.Flag{
				&cli.IntFlag{Name: "limit", Value: 50, Usage: "list at most `N` actions, 1 to 1000"},
				&cli.StringFlag{Name: "cursor", Usage: "continue with the `ID` that the last page ended with"},
			},
		}},
	}
}

func actionsList(r *request) error {
	limit := r.Int("limit")
	if limit < 1 || limit > 1000 {
		return usagef("--limit can't be %d: use 1 to 1000", limit)
	}
	l, err := r.Actions(r.ctx(), r.String("cursor"), limit)
	if problem.CodeOf(err) == problem.Invalid {
		return usagef("--cursor can't be %q: give the id that the last page ended with", r.String("cursor"))
	} else if err != nil {
		return err
	}
	if err := r.print(l, func(out *page) { actionsTable(out, l) }); err != nil {
		return err
	}
	if n := len(l.Unreadable); n > 0 {
		first := l.Unreadable[0]
		return problem.New(problem.CorruptValue, "%s can't be read; the first is %s: %s", text.Count(n, "action"), first.Key, first.Reason)
	}
	return nil
}

func actionsTable(out *page, l inspect.ActionList) {
	var rows [][]string
	for _, a := range l.Items {
		outcome := string(a.Outcome)
		if a.Unknown(out.now) {
			outcome = "unknown"
		}
		rows = append(rows, []string{
			text.Ago(out.now, a.At), a.Who, a.From, a.Action.Action, a.Object, a.Detail, a.Before, a.After, outcome, a.Result,
		})
	}
	out.table("no actions are kept", []string{"WHEN", "WHO", "FROM", "ACTION", "OBJECT", "DETAIL", "BEFORE", "AFTER", "OUTCOME", "RESULT"}, rows)
	if l.Next != "" {
		out.line("more: berth actions list --cursor %s", l.Next)
	}
}
