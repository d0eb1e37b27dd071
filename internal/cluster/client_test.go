package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testcert"
)

// dialed returns a client of all members.
func dialed(t *testing.T, m *embedtest.Members) *Client {
	t.Helper()
	c, err := Dial(Config{Endpoints: m.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestStatusShowsWhatMembersAnswer(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	c := dialed(t, m)
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !s.IsHealthy() || s.Voters != 3 || s.Healthy != 3 || s.Majority() != 2 {
		t.Errorf("a healthy cluster is %+v", s)
	}
	leads := 0
	for _, one := range s.Members {
		if one.Leader {
			leads++
		}
		if one.Version == "" || one.DBBytes == 0 || one.QuotaBytes != embed.DefaultQuotaBytes {
			t.Errorf("a member is %+v", one)
		}
	}
	if leads != 1 {
		t.Errorf("%d members lead", leads)
	}

	m.Kill(2)
	if s, err = c.Status(t.Context()); err != nil || s.IsHealthy() || s.Healthy != 2 {
		t.Errorf("with a member less it is %+v, %v", s, err)
	}
	if one, err := s.Find("m2"); err != nil || one.Status != Unreachable || one.Trouble == "" {
		t.Errorf("the member that is gone is %+v, %v", one, err)
	}

	m.Kill(1)
	for { // until the last member has missed its leader
		if s, err = c.Status(t.Context()); err != nil || s.Trouble == "" || s.answer != 1 {
			t.Fatalf("without a majority it is %+v, %v", s, err)
		}
		if one, _ := s.Find("m0"); one.Status == NoLeader && one.Trouble == "" && s.Healthy == 0 {
			break
		}
	}
	if _, err := c.Remove(t.Context(), "m2", false); problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("without a majority a member is removed: %v", err)
	}
	m.Kill(0)
	if _, err = c.Status(t.Context()); problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("without members the error is %v", err)
	}
	for _, at := range m.Endpoints() {
		if !strings.Contains(err.Error(), hostOf(at)+": connection refused") {
			t.Errorf("the error does not say why %s does not answer: %v", at, err)
		}
	}
}

func TestAMemberIsReplacedByAServerWithoutData(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	c := dialed(t, m)
	for name, code := range map[string]problem.Code{"m9": problem.NotFound, "m1": problem.Precondition} {
		if _, err := c.Replace(t.Context(), name, "", false); problem.CodeOf(err) != code {
			t.Errorf("replacing %s: %v, want %s", name, err, code)
		}
	}
	m.Kill(1)
	if _, err := c.Remove(t.Context(), "m2", true); problem.CodeOf(err) != problem.Precondition || !strings.Contains(err.Error(), "not a majority") {
		t.Errorf("one of two that answer is removed: %v", err)
	}
	old, err := c.Replace(t.Context(), "m1", "", false)
	if err != nil {
		t.Fatal(err)
	}
	if want := clusterOf(t, m, "m1", old.PeerURLs[0]); old.Before || old.Cluster != want {
		t.Errorf("it is replaced as %+v, want the cluster %s", old, want)
	}
	// Until the server there has started, the command can be repeated, with the same answer.
	const elsewhere = "http://127.0.0.1:9"
	at := old.PeerURLs[0]
	for _, step := range [][2]string{{"", at}, {at, at}, {elsewhere, elsewhere}, {"", elsewhere}, {at, at}} {
		url, want := step[0], step[1]
		again, err := c.Replace(t.Context(), "m1", url, false)
		if err != nil {
			t.Fatalf("the replacement is repeated at %q: %v", url, err)
		}
		if !again.Before || again.Name != "m1" || again.PeerURLs[0] != want || again.Cluster != clusterOf(t, m, "m1", want) {
			t.Errorf("the replacement is repeated at %q as %+v", url, again)
		}
	}
	if _, err := c.Replace(t.Context(), "m1", "https://127.0.0.1:9", false); problem.CodeOf(err) != problem.Invalid {
		t.Errorf("the replacement gets another scheme: %v", err)
	}
	if _, err := c.Remove(t.Context(), "m1", false); problem.CodeOf(err) != problem.NotFound || !strings.Contains(err.Error(), "(at "+at+", not started)") {
		t.Errorf("the removal of a member that was replaced: %v", err)
	}

	self := Member{Name: "m1", PeerURL: old.PeerURLs[0]}
	f := joiner(m, self)
	f.Others = append(f.Others[:1], f.Others[2])
	begin, err := f.Run(t.Context())
	if err != nil || !begin.Joins {
		t.Fatalf("it begins as %v, %v", begin, err)
	}
	server, err := embed.Start(t.Context(), embed.Config{
		DataDir: t.TempDir(), Name: "m1", Members: begin.Members, Joins: true, ClientListen: "127.0.0.1:0", UnsafeNoFsync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Kill() }()
	if err := c.Complete(t.Context(), server.ID(), self.PeerURL, func(error) {}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Status(t.Context()); err != nil || s.Voters != 3 || len(s.Members) != 3 {
		t.Errorf("then the cluster is %+v, %v", s, err)
	}
}

// A member that does not lead passes the request on to the leader, but not the certificate of the user.
func TestALearnerGetsAVoteThoughEtcdHasUsersWithCertificates(t *testing.T) {
	t.Parallel()
	authority := testcert.New(t)
	pair := authority.Server(t)
	certificate := &embed.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCAFile: authority.File}
	m := embedtest.Cluster(t, 2, func(c *embed.Config) { c.TLS = certificate })
	root := clientTLS(t, authority, authority.Client(t, rootName))
	follower := m.Server(1 - m.Leader()).Endpoint()
	c, err := Dial(Config{Endpoints: []string{follower}, TLS: func() *tls.Config { return root }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, step := range []func() error{
		func() error { _, err := c.etcd.UserAdd(t.Context(), rootName, "secret"); return err },
		func() error { _, err := c.etcd.UserGrantRole(t.Context(), rootName, rootName); return err },
		func() error { _, err := c.etcd.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	self := Member{Name: "new", PeerURL: "http://" + unused(t)}
	f := joiner(m, self)
	f.TLS = c.cfg.TLS
	begin, err := f.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server, err := embed.Start(t.Context(), embed.Config{
		DataDir: t.TempDir(), Name: self.Name, Members: begin.Members, Joins: true, ClientListen: "127.0.0.1:0", TLS: certificate, UnsafeNoFsync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Kill() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Complete(ctx, server.ID(), self.PeerURL, func(err error) { t.Log("it can't finish yet:", err) }); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Status(t.Context()); err != nil || s.Voters != 3 {
		t.Errorf("then the cluster is %+v, %v", s, err)
	}
}

// clientTLS returns the configuration of a client with a certificate of the authority.
func clientTLS(t *testing.T, authority *testcert.Authority, own testcert.Pair) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// unused returns an address of this machine at which no process listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// clusterOf is the setting cluster of some members in which one has another address.
func clusterOf(t *testing.T, m *embedtest.Members, name, address string) string {
	t.Helper()
	all := []string{name + "=" + address}
	for _, one := range m.Server(0).Identity().Members {
		if one.Name != name && one.Name != "" {
			all = append(all, one.Name+"="+one.PeerURLs[0])
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func TestTheAddressOfAMemberFollowsItsConfiguration(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 1)
	c := dialed(t, m)
	const at = "http://127.0.0.1:9"
	if err := c.Complete(t.Context(), m.Server(0).ID(), at, func(error) {}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Status(t.Context()); err != nil || s.Members[0].PeerURLs[0] != at {
		t.Errorf("its address is %+v, %v", s, err)
	}
	if _, err := c.Remove(t.Context(), "m0", true); problem.CodeOf(err) != problem.Precondition {
		t.Errorf("the only member is removed: %v", err)
	}
	if err := c.Complete(t.Context(), 1, at, func(error) {}); problem.CodeOf(err) != problem.Precondition {
		t.Errorf("a member that was removed: %v", err)
	}
}

func TestASnapshotIsRestoredWithLargerRevisions(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	c := dialed(t, m)
	ctx := t.Context()
	put, err := c.etcd.Put(ctx, "k", "kept")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snap.db")
	s, err := c.Save(ctx, file)
	if err != nil || s.Revision < put.Header.Revision || s.Keys == 0 {
		t.Fatalf("the snapshot is %+v, %v", s, err)
	}
	var e *problem.Error
	if _, err := c.Save(ctx, file); !errors.As(err, &e) || e.Field != "file" {
		t.Errorf("a file is overwritten: %v", err)
	}

	dir, self := filepath.Join(t.TempDir(), "etcd"), Member{Name: "a", PeerURL: "http://127.0.0.1:1"}
	if _, err := Restore(file, dir, self, DefaultBump); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(file, dir, self, DefaultBump); !errors.As(err, &e) || e.Field != "data_dir" {
		t.Errorf("data is overwritten: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 { // and the lock
		t.Errorf("in the data directory are %v, %v", left, err)
	}
	server, err := embed.Start(ctx, embed.Config{DataDir: dir, Name: "a", ClientListen: "127.0.0.1:0", UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Kill() }()
	if _, err := Restore(file, dir, self, DefaultBump); !errors.Is(err, embed.ErrDataDirLocked) {
		t.Errorf("the data directory of a server that runs is used: %v", err)
	}
	restored, err := Dial(Config{Endpoints: []string{server.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	got, err := restored.etcd.Get(ctx, "k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "kept" || got.Header.Revision < DefaultBump {
		t.Errorf("the restored cluster has %v, %v", got, err)
	}
}

func TestAFileThatIsNoSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "text": strings.Repeat("x", 1<<16)} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var e *problem.Error
		if _, err := Restore(file, filepath.Join(dir, "d"), Member{Name: "a", PeerURL: "http://127.0.0.1:1"}, DefaultBump); !errors.As(err, &e) || e.Field != "file" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadSnapshot(filepath.Join(dir, "none")); problem.CodeOf(err) != problem.Invalid {
		t.Errorf("no file: %v", err)
	}
}

func TestMembersAreDefragmentedWithTheLeaderLast(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	c := dialed(t, m)
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leader := ""
	for _, one := range s.Members {
		if one.Leader {
			leader = one.Name
		}
	}
	var order []string
	if err := c.Defrag(t.Context(), func(d Defragmented) { order = append(order, d.Name) }); err != nil {
		t.Fatal(err)
	}
	if len(order) != 3 || order[2] != leader {
		t.Errorf("the order is %v, and %s leads", order, leader)
	}
	m.Kill(0)
	if err := c.Defrag(t.Context(), func(Defragmented) {}); problem.CodeOf(err) != problem.Precondition {
		t.Errorf("with a member that does not answer: %v", err)
	}
}

func TestAnAlarmEndsWhenThereIsSpaceAgain(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 1, func(c *embed.Config) { c.QuotaBytes = 4 << 20 })
	c := dialed(t, m)
	ctx := t.Context()
	// Values of less than a page leave no gaps, so that the space is in use at the alarm.
	puts := make([]clientv3.Op, 100)
	for i := range puts {
		puts[i] = clientv3.OpPut(fmt.Sprint("k", i), strings.Repeat("x", 1<<10))
	}
	var err error
	for err == nil {
		_, err = c.etcd.Txn(ctx).Then(puts...).Commit()
	}
	s, err := c.Status(ctx)
	if err != nil || s.IsHealthy() || len(s.Members[0].Alarms) != 1 || CheckUpgrade(s)[1].OK {
		t.Fatalf("a full etcd is %+v, %v", s, err)
	}
	if err := c.Defrag(ctx, func(Defragmented) {}); problem.CodeOf(err) != problem.EtcdFull {
		t.Errorf("history is still there: %v", err)
	}
	got, err := c.etcd.Get(ctx, "k0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.etcd.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if err := c.Defrag(ctx, func(Defragmented) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.etcd.Put(ctx, "k0", "small"); err != nil {
		t.Errorf("after that a write fails: %v", err)
	}
}

func TestAClientWhoseContextHasEndedSaysSo(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := dialed(t, m).Complete(ctx, 1, "http://127.0.0.1:1", func(error) {}); err == nil {
		t.Error("it has no error")
	}
}

func TestAMemberThatIsNotHealthyHasItsOwnAdvice(t *testing.T) {
	for status, want := range map[string]string{
		Learner: "wait", New: "start", Unreachable: "repair or replace it",
	} {
		s := &Status{Voters: 3, Members: []MemberStatus{{Name: "c", Status: status}}}
		if got := CheckUpgrade(s)[0].Detail; !strings.Contains(got, "c is "+status+": "+want) {
			t.Errorf("a member that is %s: %s", status, got)
		}
	}
}

func TestAnUpgradeIsCheckedByConditions(t *testing.T) {
	healthy := func() *Status {
		s := &Status{Voters: 3, Healthy: 3}
		for _, name := range []string{"a", "b", "c"} {
			s.Members = append(s.Members, MemberStatus{Name: name, Status: Healthy, Version: "3.7.1", UsedBytes: 1, QuotaBytes: 100})
		}
		return s
	}
	for name, c := range map[string]struct {
		change func(*MemberStatus)
		wrong  string // the check that fails; empty is none
	}{
		"all well":         {func(*MemberStatus) {}, ""},
		"a member is down": {func(m *MemberStatus) { m.Status, m.Version = Unreachable, "" }, "members"},
		"a learner":        {func(m *MemberStatus) { m.Status = Learner }, "members"},
		"an alarm":         {func(m *MemberStatus) { m.Alarms = []string{alarmCorrupt} }, "alarms"},
		"nearly full":      {func(m *MemberStatus) { m.UsedBytes = 81 }, "space"},
		"late":             {func(m *MemberStatus) { m.Lag = maxLag + 1 }, "lag"},
		"one minor older":  {func(m *MemberStatus) { m.Version = "3.6.9" }, ""},
		"two minors older": {func(m *MemberStatus) { m.Version = "3.5.20" }, "versions"},
		"a newer minor":    {func(m *MemberStatus) { m.Version = "3.8.0" }, "versions"},
		"a newer patch":    {func(m *MemberStatus) { m.Version = "3.7.9" }, ""},
		"another major":    {func(m *MemberStatus) { m.Version = "4.0.0" }, "versions"},
	} {
		s := healthy()
		c.change(&s.Members[1])
		checks := append(CheckUpgrade(s)[:4], s.checkVersions("3.7.3"))
		for _, check := range checks {
			if check.OK == (check.Name == c.wrong) || check.Detail == "" {
				t.Errorf("%s: %+v", name, check)
			}
		}
	}
}

func TestWhatEtcdRefusesIsSaidInItsOwnWords(t *testing.T) {
	denied := status.Error(codes.PermissionDenied, "etcdserver: permission denied")
	const want = "etcd refuses: etcdserver: permission denied: this needs a user with etcd's role root"
	for _, err := range []error{denied, fmt.Errorf("open: %w", denied), rpctypes.Error(denied)} {
		if got := (&Client{}).problem(err, "no snapshot"); got.Error() != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	const full = "etcd refuses: etcdserver: unhealthy cluster"
	if got := (&Client{}).problem(status.Error(codes.Unknown, "etcdserver: unhealthy cluster"), "no member"); got.Error() != full {
		t.Errorf("%v, want %s", got, full)
	}
}

// learner starts a learner of a cluster, at an endpoint of its own.
func learner(t *testing.T, m *embedtest.Members, c *Client) (endpoint string) {
	t.Helper()
	self := Member{Name: "late", PeerURL: "http://" + unused(t)}
	begin, err := joiner(m, self).Run(t.Context())
	if err != nil || !begin.Joins {
		t.Fatalf("it begins as %v, %v", begin, err)
	}
	server, err := embed.Start(t.Context(), embed.Config{
		DataDir: t.TempDir(), Name: "late", Members: begin.Members, Joins: true, ClientListen: unused(t), UnsafeNoFsync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Kill() })
	for { // until the cluster knows its address for clients
		s, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if one, err := s.Find("late"); err == nil && one.Status == Learner && one.Version != "" {
			return server.Endpoint()
		}
	}
}

func TestALearnerIsNamedAndDoesNotKeepTheOthersFromBeingDefragmented(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	late := learner(t, m, dialed(t, m))
	c, err := Dial(Config{Endpoints: append(m.Endpoints(), late)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var done []Defragmented
	if err := c.Defrag(t.Context(), func(d Defragmented) { done = append(done, d) }); err != nil {
		t.Fatal(err)
	}
	skipped := ""
	for _, d := range done {
		if d.Skipped != "" {
			skipped += d.Name + " " + d.Skipped
		}
	}
	if len(done) != 4 || !strings.HasPrefix(skipped, "late it is a learner") {
		t.Errorf("it reports %+v", done)
	}
	k := store.NewKeys("/berth/")
	for range 4 { // whichever endpoint is asked first
		s, err := c.Space(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		if freed, err := c.Free(t.Context(), k, s); err != nil || len(freed.Members) != 4 {
			t.Errorf("freed %+v, %v", freed, err)
		}
		if _, err := c.Users(t.Context()); err != nil {
			t.Errorf("users: %v", err)
		}
	}
}

func TestALearnerThatIsTheOnlyEndpointIsNamed(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	late := learner(t, m, dialed(t, m))
	c, err := Dial(Config{Endpoints: []string{late}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Defrag(t.Context(), func(Defragmented) {}); err == nil || !strings.Contains(err.Error(), "the etcd at "+late+" is a learner") || !strings.Contains(err.Error(), "endpoints") {
		t.Errorf("the error is %v", err)
	}
}
