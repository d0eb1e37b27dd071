package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/problem"
)

// rootName is the name of the user and of the role of etcd that may do everything. Etcd turns
// authentication on only if the user exists and has the role.
const rootName = "root"

// KeyRange is a range of keys as etcd has it: without an end, it is one key.
type KeyRange struct{ Key, End string }

// Role is a role of etcd: what it may read, and read and write.
type Role struct {
	Name          string
	Reads, Writes []KeyRange
}

// User is a user to be.
type User struct {
	Name  string
	Roles []string
	// Password has the user log in with a password, if it is new.
	Password bool
}

// UserStatus is a user of etcd.
type UserStatus struct {
	Name  string   `json:"name"`
	Roles []string `json:"roles"`
	// Change is what was done: created, changed or removed; empty if nothing.
	Change string `json:"change,omitempty"`
	// Password is that of a new user that has one.
	Password string `json:"-"`
}

// Users are the users of etcd.
type Users struct {
	// On reports whether authentication is on.
	On    bool         `json:"authentication"`
	Users []UserStatus `json:"users"`
	// Roles are the roles that were created or changed.
	Roles []RoleStatus `json:"roles,omitempty"`
	// Notes say what may be wrong.
	Notes []string `json:"notes,omitempty"`
}

// RoleStatus is a role that was created or changed.
type RoleStatus struct {
	Name   string `json:"name"`
	Change string `json:"change"`
}

// The changes.
const (
	Created = "created"
	Changed = "changed"
	Removed = "removed"
)

const noUsers = "the users of etcd could not be read or changed"

// Users returns the users of etcd, in the order of their names.
func (c *Client) Users(ctx context.Context) (*Users, error) {
	u := &Users{Users: []UserStatus{}}
	err := c.within(ctx, func(ctx context.Context) error {
		status, err := c.etcd.AuthStatus(ctx)
		if err != nil {
			return err
		}
		u.On = status.Enabled
		list, err := c.etcd.UserList(ctx)
		if err != nil {
			return err
		}
		slices.Sort(list.Users)
		for _, name := range list.Users {
			got, err := c.etcd.UserGet(ctx, name)
			if err != nil {
				return err
			}
			u.Users = append(u.Users, UserStatus{Name: name, Roles: got.Roles})
		}
		return nil
	})
	if err != nil {
		return nil, c.problem(err, noUsers)
	}
	return u, nil
}

// within does something within the time for requests.
func (c *Client) within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// find returns a user; nil if there is none.
func (u *Users) find(name string) *UserStatus {
	if i := slices.IndexFunc(u.Users, func(s UserStatus) bool { return s.Name == name }); i >= 0 {
		return &u.Users[i]
	}
	return nil
}

// admin reports whether a user may do everything.
func (u *Users) admin(name string) bool {
	one := u.find(name)
	return one != nil && slices.Contains(one.Roles, rootName)
}

// SetUsers gives users exactly their roles, and the roles exactly their rights. It creates what is
// missing, and leaves other users and roles as they are. To repeat it changes nothing.
func (c *Client) SetUsers(ctx context.Context, users []User, roles []Role) (*Users, error) {
	u, err := c.Users(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range roles {
		change, err := c.setRole(ctx, r)
		if err != nil {
			return nil, c.problem(err, noUsers)
		}
		if change != "" {
			u.Roles = append(u.Roles, RoleStatus{r.Name, change})
		}
	}
	for _, want := range users {
		if err := c.setUser(ctx, u, want); err != nil {
			return nil, c.problem(err, noUsers)
		}
	}
	slices.SortFunc(u.Users, func(a, b UserStatus) int { return strings.Compare(a.Name, b.Name) })
	u.Notes, err = c.notes(ctx, u)
	return u, err
}

// permission is a right of a role.
type permission struct {
	KeyRange
	kind authpb.Permission_Type
}

// permissions returns the rights of a role. Those to write a range include those to read it.
func permissions(r Role) map[permission]bool {
	all := map[permission]bool{}
	for _, keys := range r.Reads {
		all[permission{keys, authpb.READ}] = true
	}
	for _, keys := range r.Writes {
		delete(all, permission{keys, authpb.READ}) // etcd has one permission for a range
		all[permission{keys, authpb.READWRITE}] = true
	}
	return all
}

// setRole creates a role, or grants and revokes what it lacks and has too much.
func (c *Client) setRole(ctx context.Context, r Role) (change string, err error) {
	err = c.within(ctx, func(ctx context.Context) error {
		got, err := c.etcd.RoleGet(ctx, r.Name)
		if errors.Is(err, rpctypes.ErrRoleNotFound) {
			change = Created
			if _, err = c.etcd.RoleAdd(ctx, r.Name); err != nil {
				return err
			}
			got = &clientv3.AuthRoleGetResponse{}
		}
		if err != nil {
			return err
		}
		want := permissions(r)
		for _, p := range got.Perm {
			has := permission{KeyRange{Key: string(p.Key), End: string(p.RangeEnd)}, p.PermType}
			if want[has] {
				delete(want, has)
				continue
			}
			if _, err := c.etcd.RoleRevokePermission(ctx, r.Name, has.Key, has.End); err != nil {
				return err
			}
			change = Changed
		}
		for p := range want {
			if _, err := c.etcd.RoleGrantPermission(ctx, r.Name, p.Key, p.End, clientv3.PermissionType(p.kind)); err != nil {
				return err
			}
			if change == "" {
				change = Changed
			}
		}
		return nil
	})
	return change, err
}

// setUser creates a user, or grants and revokes its roles.
func (c *Client) setUser(ctx context.Context, u *Users, want User) error {
	return c.within(ctx, func(ctx context.Context) error {
		one := u.find(want.Name)
		if one == nil {
			one = &UserStatus{Name: want.Name, Change: Created}
			if want.Password {
				one.Password = rand.Text()
			}
			_, err := c.etcd.UserAddWithOptions(ctx, one.Name, one.Password, &clientv3.UserAddOptions{NoPassword: !want.Password})
			if err != nil {
				return err
			}
			u.Users = append(u.Users, *one)
			one = &u.Users[len(u.Users)-1]
		}
		for _, role := range want.Roles {
			if !slices.Contains(one.Roles, role) {
				if _, err := c.etcd.UserGrantRole(ctx, one.Name, role); err != nil {
					return err
				}
				one.changed()
			}
		}
		for _, role := range one.Roles {
			if !slices.Contains(want.Roles, role) {
				if _, err := c.etcd.UserRevokeRole(ctx, one.Name, role); err != nil {
					return err
				}
				one.changed()
			}
		}
		one.Roles = slices.Sorted(slices.Values(want.Roles))
		return nil
	})
}

func (s *UserStatus) changed() {
	if s.Change == "" {
		s.Change = Changed
	}
}

// notes says which members may have no user: those whose names no admin has.
func (c *Client) notes(ctx context.Context, u *Users) (notes []string, err error) {
	list, err := c.members(ctx)
	if err != nil {
		return nil, c.problem(err, "the members of the cluster could not be read")
	}
	for _, m := range list {
		if m.Name != "" && !u.admin(m.Name) {
			notes = append(notes, "no user with the name of member "+m.Name+" has the role admin: if it is a 'berth server' with a certificate of that name, it can't work with authentication on")
		}
	}
	return notes, nil
}

// Enable turns authentication on, after it has created the user root, which etcd requires. It
// refuses that if the caller could not turn it off again.
func (c *Client) Enable(ctx context.Context, u *Users) error {
	self, err := c.self()
	switch {
	case err != nil:
		return err
	case u.On:
		return nil
	case self == "":
		return problem.New(problem.Precondition, "authentication stays off: this command has neither a certificate nor a user, so it could not use etcd afterwards. Set cert and key, or user and password_file, of a user with the role admin")
	case !u.admin(self):
		return problem.New(problem.Precondition, "authentication stays off: %q, as which this command uses etcd, is not a user with the role admin, so nobody could go on. Add %s=admin, or use the certificate or user of an admin", self, self)
	}
	if !u.admin(rootName) {
		if err := c.setUser(ctx, u, User{Name: rootName, Roles: []string{rootName}}); err != nil {
			return c.problem(err, noUsers)
		}
	}
	err = c.within(ctx, func(ctx context.Context) error {
		_, err := c.etcd.AuthEnable(ctx)
		return err
	})
	if err != nil {
		return c.problem(err, "authentication could not be turned on")
	}
	u.On = true
	return nil
}

// self returns the name of the user as which requests are made, once authentication is on.
func (c *Client) self() (string, error) {
	if c.cfg.Username != "" || c.cfg.TLS == nil {
		return c.cfg.Username, nil
	}
	conf := c.cfg.TLS()
	var cert *tls.Certificate
	if len(conf.Certificates) > 0 {
		cert = &conf.Certificates[0]
	} else if conf.GetClientCertificate != nil {
		got, err := conf.GetClientCertificate(&tls.CertificateRequestInfo{})
		if err != nil {
			return "", problem.Field("cert", "%w", err)
		}
		cert = got
	}
	if cert == nil || len(cert.Certificate) == 0 {
		return "", nil
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return "", problem.Field("cert", "%w", err)
	}
	return leaf.Subject.CommonName, nil
}

// RemoveUser removes a user. One that does not exist is no error.
func (c *Client) RemoveUser(ctx context.Context, u *Users, name string) error {
	one := u.find(name)
	self, err := c.self()
	switch {
	case err != nil:
		return err
	case one == nil:
		return nil
	case u.On && (name == self || name == rootName):
		return problem.New(problem.Precondition, "user %s is needed while authentication is on: turn it off first, or use another user with the role admin", problem.Quote(name))
	}
	err = c.within(ctx, func(ctx context.Context) error {
		_, err := c.etcd.UserDelete(ctx, name)
		return err
	})
	if err != nil {
		return c.problem(err, noUsers)
	}
	one.Roles, one.Change = nil, Removed
	return nil
}

// Disable turns authentication off: then all that can connect may do everything.
func (c *Client) Disable(ctx context.Context) (*Users, error) {
	err := c.within(ctx, func(ctx context.Context) error {
		_, err := c.etcd.AuthDisable(ctx)
		return err
	})
	if err != nil {
		return nil, c.problem(err, "authentication could not be turned off")
	}
	return c.Users(ctx)
}
