package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/cluster"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

func clusterUsersCommand() *cli.Command {
	var roles []string
	for _, r := range store.RoleKinds {
		roles = append(roles, r.String())
	}
	half := len(roles) / 2 // two lines
	return &cli.Command{
		Name: "users", Usage: "create users and roles of etcd, and turn authentication on", ArgsUsage: "[NAME=ROLE[,ROLE...]...]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "prepare", Usage: "leave authentication as it is"},
			&cli.StringFlag{Name: "passwords", Usage: "give new users a password, and write it to `DIR`/NAME; without it, a user is known by its certificate only"},
			&cli.StringSliceFlag{Name: "remove", Usage: "remove the user `NAME`; may be repeated"},
			&cli.BoolFlag{Name: "off", Usage: "turn authentication off: then all that can connect may do everything"},
		},
		Description: `Each NAME is a user of etcd: the name in a certificate, or the setting user. It gets exactly
these roles, and the roles exactly the rights that they need. Other users stay as they are, and
to repeat the command changes nothing. Without arguments, it lists the users.

Once authentication is on, a process can use etcd only as one of its users. So name all of them,
the servers first. Use the certificate of an admin: otherwise the command refuses to turn
authentication on, since it could not be run again.

The roles are described in docs/how-to/etcd.md. A host or pool can be *, for all of them:

  ` + strings.Join(roles[:half], ", ") + ",\n  " + strings.Join(roles[half:], ", "),
		Action: handle(clusterUsers, argument{name: "NAME=ROLE", optional: true, many: true}),
	}
}

func clusterUsers(r *request) error {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Etcd)
	if err != nil {
		return err
	}
	users, roles, err := usersOf(store.NewKeys(s.Prefix), r.args, r.String("passwords") != "")
	if err != nil {
		return err
	}
	remove, off, dir := r.StringSlice("remove"), r.Bool("off"), r.String("passwords")
	if off && len(users)+len(remove) > 0 {
		return usagef("--off can't be used with users: it only turns authentication off")
	}
	for _, u := range users {
		if slices.Contains(remove, u.Name) {
			return usagef("user %q can't be both set and removed", u.Name)
		}
	}
	if off || len(users)+len(remove) > 0 {
		if err := (way{r: r}).changeCluster(s); err != nil {
			return err
		}
	}
	c, err := dialCluster(s, newLogger(r.App.ErrWriter, s, hclog.Warn))
	if err != nil {
		return err
	}
	defer c.Close()
	if off {
		all, err := c.Disable(r.ctx())
		return printUsers(r, all, dir, err)
	}
	all, err := c.SetUsers(r.ctx(), users, roles)
	if err == nil {
		err = writePasswords(dir, all)
	}
	for _, name := range remove {
		if err == nil {
			err = c.RemoveUser(r.ctx(), all, name)
		}
	}
	if err == nil && len(users) > 0 && !r.Bool("prepare") {
		err = c.Enable(r.ctx(), all)
	}
	return printUsers(r, all, dir, err)
}

// usersOf reads NAME=ROLE,ROLE of each user.
func usersOf(keys store.Keys, args []string, passwords bool) (users []cluster.User, roles []cluster.Role, err error) {
	for _, arg := range args {
		name, list, ok := strings.Cut(arg, "=")
		if !ok || name == "" || list == "" || strings.ContainsAny(name, "/\x00") {
			return nil, nil, usagef("%q is not a user with its roles: write NAME=ROLE, or NAME=ROLE,ROLE", arg)
		}
		if slices.ContainsFunc(users, func(u cluster.User) bool { return u.Name == name }) {
			return nil, nil, usagef("user %q is named twice", name)
		}
		u := cluster.User{Name: name, Password: passwords}
		for text := range strings.SplitSeq(list, ",") {
			role, err := keys.Role(text)
			if err != nil {
				return nil, nil, usagef("%s: %s", arg, err)
			}
			if !slices.Contains(u.Roles, role.Name) {
				u.Roles = append(u.Roles, role.Name)
			}
			roles = addRole(roles, role)
		}
		users = append(users, u)
	}
	return users, roles, nil
}

// addRole adds a role, or its rights if it is there: a source can run on several hosts.
func addRole(roles []cluster.Role, r store.Role) []cluster.Role {
	if r.Name == store.RootRole {
		return roles
	}
	at := slices.IndexFunc(roles, func(is cluster.Role) bool { return is.Name == r.Name })
	if at < 0 {
		roles, at = append(roles, cluster.Role{Name: r.Name}), len(roles)
	}
	for _, keys := range r.Reads {
		roles[at].Reads = append(roles[at].Reads, cluster.KeyRange(keys))
	}
	for _, keys := range r.Writes {
		roles[at].Writes = append(roles[at].Writes, cluster.KeyRange(keys))
	}
	return roles
}

// writePasswords writes the passwords of new users.
func writePasswords(dir string, all *cluster.Users) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return problem.Field("passwords", "%w", err)
	}
	for _, u := range all.Users {
		if u.Password == "" {
			continue
		}
		path := filepath.Join(dir, u.Name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a user that was removed
			return problem.Field("passwords", "the password of %q can't be written, so remove that user and create it again: %w", u.Name, err)
		}
		if err := os.WriteFile(path, []byte(u.Password+"\n"), 0o600); err != nil {
			return problem.Field("passwords", "the password of %q can't be written, so remove that user and create it again: %w", u.Name, err)
		}
	}
	return nil
}

// printUsers prints the users, and what was done, even if something has failed after that.
func printUsers(r *request, all *cluster.Users, dir string, failed error) error {
	if all == nil {
		return failed
	}
	err := r.print(all, func(out *page) {
		var rows [][]string
		for _, u := range all.Users {
			settings := ""
			switch {
			case u.Password != "":
				settings = "user: " + u.Name + ", password_file: " + filepath.Join(dir, u.Name)
			case u.Change == cluster.Created && u.Name != store.RootRole: // etcd requires root, and nobody uses it
				settings = "cert and key of a certificate of " + u.Name
			}
			rows = append(rows, []string{u.Name, strings.Join(u.Roles, ","), u.Change, settings})
		}
		out.table("etcd has no users", []string{"USER", "ROLES", "CHANGE", "SETTINGS"}, rows)
		out.gap()
		for _, role := range all.Roles {
			out.line("role %s: %s", role.Name, role.Change)
		}
		for _, note := range all.Notes {
			out.line("warning: %s", note)
		}
		state := "off: all that can connect to etcd may do everything"
		if all.On {
			state = "on"
		}
		out.line("authentication is %s", state)
	})
	return errors.Join(failed, err)
}
