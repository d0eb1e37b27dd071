package store

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Right is a right of a user of etcd, to read or to write a range of keys.
type Right struct {
	write bool
	KeyRange
}

// ReadRights returns the rights to read ranges.
func ReadRights(ranges ...KeyRange) (all []Right) {
	for _, r := range ranges {
		all = append(all, Right{false, r})
	}
	return all
}

// WriteRights returns the rights to read and write ranges.
func WriteRights(ranges ...KeyRange) (all []Right) {
	for _, r := range ranges {
		all = append(all, Right{true, r}, Right{false, r})
	}
	return all
}

// String returns what the right allows, and on which keys.
func (r Right) String() string {
	if r.write {
		return "write " + r.KeyRange.String()
	}
	return "read " + r.KeyRange.String()
}

// last is the end of a range that has no end, behind every key.
const last = "\xff\xff\xff\xff\xff\xff\xff\xff"

// span returns the first key of a range, and the first one behind it.
func span(key, end string) (string, string) {
	switch end {
	case "":
		return key, key + "\x00"
	case "\x00":
		return key, last
	}
	return key, end
}

// Rights are those of the user of a connection.
type Rights struct {
	// User is the name of the user. It is empty if etcd has no users, or none is known;
	// then etcd alone knows what is allowed.
	User string
	all  bool // the user is root
	held []*authpb.Permission
}

// rootRole is the role of etcd that may do everything.
const rootRole = "root"

// Missing returns those rights that the user does not have.
func (r Rights) Missing(rights ...Right) (missing []Right) {
	if r.User == "" || r.all {
		return nil
	}
	for _, want := range rights {
		kind := authpb.READ
		if want.write {
			kind = authpb.WRITE
		}
		if !r.covers(want, kind) {
			missing = append(missing, want)
		}
	}
	return missing
}

// covers reports whether permissions of a kind together cover a range. etcd merges them in
// the same way.
func (r Rights) covers(want Right, kind authpb.Permission_Type) bool {
	from, end := span(want.Key, want.End)
	for moved := true; moved && from < end; {
		moved = false
		for _, p := range r.held {
			if p.PermType != kind && p.PermType != authpb.READWRITE {
				continue
			}
			if begin, until := span(string(p.Key), string(p.RangeEnd)); begin <= from && from < until {
				from, moved = until, true
			}
		}
	}
	return from >= end
}

// User returns the user of etcd that requests are made as: the user that has logged in,
// or the common name of the client certificate if etcd takes users from certificates. It is
// empty if etcd has no users.
func (c *Client) User(ctx context.Context) (string, error) {
	if c.login != nil {
		token, err := c.login.get(ctx)
		if err != nil || token == "" {
			return "", err
		}
		return c.username, nil
	}
	name := c.commonName()
	if name == "" {
		return "", nil
	}
	status, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "rights", func(ctx context.Context, at *endpoint, _ string) (*pb.AuthStatusResponse, error) {
		return pb.NewAuthClient(at.ActiveConnection()).AuthStatus(ctx, &pb.AuthStatusRequest{})
	})
	if err != nil || !status.Enabled {
		return "", err
	}
	if _, err := c.roles(ctx, name); err != nil {
		return "", err // etcd has users, and does not take this certificate for one of them
	}
	return name, nil
}

// roles returns the roles of a user. A user may always read its own.
func (c *Client) roles(ctx context.Context, user string) ([]string, error) {
	got, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "rights", func(ctx context.Context, at *endpoint, _ string) (*pb.AuthUserGetResponse, error) {
		return pb.NewAuthClient(at.ActiveConnection()).UserGet(ctx, &pb.AuthUserGetRequest{Name: user})
	})
	return got.GetRoles(), err
}

// commonName returns the common name of the client certificate, empty for none.
func (c *Client) commonName() string {
	cert, err := c.conns[0].remote.Certificate()
	if err != nil || cert == nil || len(cert.Certificate) == 0 {
		return ""
	}
	leaf := cert.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return ""
		}
	}
	return leaf.Subject.CommonName
}

// Rights returns the rights of the user of requests.
func (c *Client) Rights(ctx context.Context) (Rights, error) {
	user, err := c.User(ctx)
	if err != nil || user == "" {
		return Rights{}, err
	}
	roles, err := c.roles(ctx, user)
	if err != nil {
		return Rights{}, err
	}
	r := Rights{User: user, all: slices.Contains(roles, rootRole)}
	for _, role := range roles {
		if r.all {
			break
		}
		got, err := do(ctx, c, c.cluster.at.Load(), &c.writes, "rights", func(ctx context.Context, at *endpoint, _ string) (*pb.AuthRoleGetResponse, error) {
			return pb.NewAuthClient(at.ActiveConnection()).RoleGet(ctx, &pb.AuthRoleGetRequest{Role: role})
		})
		if err != nil {
			return Rights{}, err
		}
		r.held = append(r.held, got.Perm...)
	}
	return r, nil
}

// Require returns [ErrDenied] with the name of the user and the rights that are missing,
// unless the user of a backend has them all. If etcd does not say what they are, it is
// left to the first request that etcd refuses.
func Require(ctx context.Context, b Backend, rights ...Right) error {
	c, ok := b.(interface {
		Rights(context.Context) (Rights, error)
	})
	if !ok || len(rights) == 0 {
		return nil
	}
	have, err := c.Rights(ctx)
	switch {
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrNoLogin), errors.Is(err, ErrOtherCluster):
		return err
	case err != nil:
		return nil
	}
	if missing := have.Missing(rights...); len(missing) > 0 {
		return fmt.Errorf("%w: %s", ErrDenied, have.lacks(missing))
	}
	return nil
}

// maxNamed is how many missing rights an error names.
const maxNamed = 4

// lacks says which rights the user does not have.
func (r Rights) lacks(missing []Right) string {
	var names []string
	for _, m := range missing {
		write := m
		write.write = true
		if s := m.String(); !slices.Contains(names, s) && (m.write || !slices.Contains(missing, write)) {
			names = append(names, s)
		}
	}
	more := ""
	if n := len(names) - maxNamed; n > 0 {
		names, more = names[:maxNamed], fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Sprintf("user %q of etcd has no right to %s%s", r.User, strings.Join(names, ", "), more)
}

// refusals explains what etcd refuses for lack of rights.
type refusals struct {
	mu     sync.Mutex
	rights Rights // of the last refusal
	at     time.Time
}

const (
	// refusalKept is how long the rights that were read for one refusal explain others.
	refusalKept = 5 * time.Second
	// refusalTimeout bounds the reading of them.
	refusalTimeout = 2 * time.Second
)

// explain adds to the error of a request that etcd has refused for lack of rights who the
// user is, and which right is missing. A nil needs is of a request about a lease: etcd wants
// the right to write all its keys. Other errors stay as they are.
func (c *Client) explain(ctx context.Context, err error, needs func() []Right) error {
	if err == nil || !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied)) {
		return err
	}
	c.refusals.mu.Lock()
	defer c.refusals.mu.Unlock()
	if time.Since(c.refusals.at) > refusalKept {
		ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
		defer cancel()
		r, unread := c.Rights(ctx)
		if unread != nil {
			return err
		}
		c.refusals.rights, c.refusals.at = r, time.Now()
	}
	r := c.refusals.rights
	if r.User == "" {
		return err
	}
	if needs == nil {
		return fmt.Errorf("%w: user %q of etcd has no right to write all keys of that lease", err, r.User)
	}
	if missing := r.Missing(needs()...); len(missing) > 0 {
		return fmt.Errorf("%w: %s", err, r.lacks(missing))
	}
	return fmt.Errorf("%w to user %q of etcd", err, r.User)
}

// rightsFor appends the rights that a transaction needs. etcd checks those of both
// branches, and of all nested transactions.
func rightsFor(t *pb.TxnRequest, all []Right) []Right {
	for _, c := range t.Compare {
		all = append(all, Right{false, KeyRange{string(c.Key), string(c.RangeEnd)}})
	}
	for _, ops := range [][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			switch r := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				all = append(all, Right{false, KeyRange{string(r.RequestRange.Key), string(r.RequestRange.RangeEnd)}})
			case *pb.RequestOp_RequestPut:
				all = append(all, Right{true, KeyRange{string(r.RequestPut.Key), ""}})
			case *pb.RequestOp_RequestDeleteRange:
				all = append(all, Right{true, KeyRange{string(r.RequestDeleteRange.Key), string(r.RequestDeleteRange.RangeEnd)}})
			case *pb.RequestOp_RequestTxn:
				all = rightsFor(r.RequestTxn, all)
			}
		}
	}
	return all
}
