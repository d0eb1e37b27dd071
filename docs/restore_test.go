//go:build linux

package docs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/berthhq/berth/e2e"
	"github.com/berthhq/berth/internal/store/embed"
)

// etcdTools are the programs of etcd that the page calls, with the subcommands that it uses.
var etcdTools = map[string]func(args []string) error{"etcdctl": etcdctl, "etcdutl": etcdutl}

// etcdctl is etcdctl --endpoints ADDRESS snapshot save FILE.
func etcdctl(args []string) error {
	flags := flag.NewFlagSet("etcdctl", flag.ContinueOnError)
	endpoint := flags.String("endpoints", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if rest := flags.Args(); len(rest) != 3 || rest[0] != "snapshot" || rest[1] != "save" {
		return fmt.Errorf("etcdctl %q is not what the recipe has", rest)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	return e2e.SaveSnapshot(context.Background(), c, flags.Arg(2))
}

// etcdutl is etcdutl snapshot restore FILE FLAGS.
func etcdutl(args []string) error {
	if len(args) < 3 || args[0] != "snapshot" || args[1] != "restore" {
		return fmt.Errorf("etcdutl %q is not what the recipe has", args)
	}
	c := snapshot.RestoreConfig{SnapshotPath: args[2]}
	flags := flag.NewFlagSet("etcdutl", flag.ContinueOnError)
	flags.Uint64Var(&c.RevisionBump, "bump-revision", 0, "")
	flags.BoolVar(&c.MarkCompacted, "mark-compacted", false, "")
	flags.StringVar(&c.Name, "name", "default", "")
	flags.StringVar(&c.OutputDataDir, "data-dir", "", "")
	flags.StringVar(&c.InitialCluster, "initial-cluster", "default=http://localhost:2380", "")
	flags.StringVar(&c.InitialClusterToken, "initial-cluster-token", "etcd-cluster", "")
	peer := flags.String("initial-advertise-peer-urls", "http://localhost:2380", "")
	if err := flags.Parse(args[3:]); err != nil {
		return err
	}
	c.PeerURLs = []string{*peer}
	return snapshot.NewV3(zap.NewNop()).Restore(c)
}

// operator follows the page, with three members.
type operator struct {
	t       *testing.T
	dir     string
	env     []string
	names   []string
	clients map[string]string // addresses by name
	peers   map[string]string
	running map[string]*embed.Server
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	o := &operator{
		t: t, dir: t.TempDir(), names: []string{"etcd-1", "etcd-2", "etcd-3"},
		clients: map[string]string{}, peers: map[string]string{}, running: map[string]*embed.Server{},
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range etcdTools {
		if err := os.Symlink(self, filepath.Join(o.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var endpoints []string
	for _, name := range o.names {
		o.clients[name], o.peers[name] = freeAddress(t), freeAddress(t)
		endpoints = append(endpoints, "http://"+o.clients[name])
	}
	o.env = []string{
		"PATH=" + o.dir + ":" + build(t) + ":" + os.Getenv("PATH"), "HOME=" + o.dir, "TMPDIR=" + o.dir,
		"BERTH_ENDPOINTS=" + strings.Join(endpoints, ","), "BERTH_HOST=one",
	}
	t.Cleanup(o.stopEtcd)
	return o
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startEtcd starts the members on what is in their folders below dir.
func (o *operator) startEtcd(dir string) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range o.names {
		all.Go(func() {
			s, err := embed.Start(ctx, embed.Config{
				Name: name, DataDir: filepath.Join(o.dir, dir, name), ClientListen: o.clients[name], Members: maps.Clone(o.peers),
				Tick: 50 * time.Millisecond, Election: 500 * time.Millisecond, UnsafeNoFsync: true,
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				o.t.Errorf("%s: %v", name, err)
				cancel()
				return
			}
			o.running[name] = s
		})
	}
	all.Wait()
	if o.t.Failed() {
		o.t.FailNow()
	}
}

func (o *operator) stopEtcd() {
	for name, s := range o.running {
		if err := s.Kill(); err != nil {
			o.t.Error(err)
		}
		delete(o.running, name)
	}
}

// sh runs a script and returns its output.
func (o *operator) sh(text string) string {
	o.t.Helper()
	cmd := o.command("bash", "-euo", "pipefail", "-c", text)
	late := time.AfterFunc(patience/4, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.t.Fatalf("%v\n%s\nprinted\n%s", err, text, out)
	}
	return string(out)
}

func (o *operator) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = o.dir, o.env
	return cmd
}

// daemons starts a sidecar that coordinates, and a worker. It returns a function that stops them.
func (o *operator) daemons() (stop func()) {
	o.t.Helper()
	berth := filepath.Join(build(o.t), "berth")
	var all []*exec.Cmd
	for _, args := range [][]string{
		{"sidecar", "--coordinator", "--listen", "127.0.0.1:0", "--state-dir", "sidecar.state"},
		{"worker", "--state-dir", "worker.state"},
	} {
		cmd := o.command(berth, args...)
		log, err := os.OpenFile(filepath.Join(o.dir, args[0]+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			o.t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		err = cmd.Start()
		_ = log.Close()
		if err != nil {
			o.t.Fatal(err)
		}
		o.t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if text, err := os.ReadFile(log.Name()); o.t.Failed() && err == nil {
				o.t.Logf("%s: %s", args[0], text)
			}
		})
		all = append(all, cmd)
	}
	for _, part := range []string{"sidecar", "leads", "worker"} {
		o.sh("until berth hosts list | grep -w " + part + "; do sleep 0.1; done")
	}
	return func() {
		for _, cmd := range all {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, cmd := range all {
			if err := cmd.Wait(); err != nil {
				o.t.Errorf("%s: %v", cmd.Args[1], err)
			}
		}
	}
}

// recipe returns the block of the page that has a command.
func recipe(t *testing.T, command string) string {
	t.Helper()
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if p.name == "how-to/backup.md" && strings.Contains(b.text, command) {
				return b.text
			}
		}
	}
	t.Fatalf("no block of how-to/backup.md has %s", command)
	return ""
}

// on returns a block with the addresses and the folder of one member.
func (o *operator) on(name, text string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "name=etcd-1 ", "name="+name+" "), "$name", name)
	var pairs []string
	for _, n := range o.names {
		pairs = append(pairs, "https://"+n+":2379", "http://"+o.clients[n], "https://"+n+":2380", "http://"+o.peers[n])
	}
	return strings.NewReplacer(append(pairs, "/var/lib/etcd-restored", "restored/"+name)...).Replace(text)
}

func TestTheRestoreOfThreeMembersDoesWhatThePageSays(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs other processes: there is nothing to see for the race detector")
	}
	t.Parallel()
	o := newOperator(t)
	o.startEtcd("first")
	stop := o.daemons()
	const fence = "berth exec --pool db -- sh -c 'echo $BERTH_FENCE'"
	o.sh("berth pools set db 2; berth submit --id before -- true; berth runs wait before")
	before := o.number(fence)
	o.sh(o.on("etcd-1", recipe(t, "snapshot save")))
	o.sh("berth pools set db 5; berth submit --id after -- true; berth runs wait after")
	after := o.number(fence)
	stop()
	o.stopEtcd()

	for _, name := range o.names {
		o.sh(o.on(name, recipe(t, "snapshot restore")))
	}
	o.startEtcd("restored")
	for _, name := range o.names { // each is a member, and has what the snapshot has
		o.sh("berth pools list --endpoints http://" + o.clients[name] + " | grep -E '^db +2 '")
	}
	stop = o.daemons()
	defer stop()
	o.sh("berth verify")
	o.sh("berth runs list --status succeeded | grep '^before '; ! berth runs info after")
	o.sh("berth submit --id again -- true; berth runs wait again")
	const bump = 1_000_000_000
	if again := o.number(fence); after <= before || after-before >= bump || again-before < bump {
		t.Errorf("fencing tokens are %d before the snapshot, %d after it and %d after the restore", before, after, again)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{o.clients["etcd-2"]}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Get(t.Context(), "x", clientv3.WithRev(after)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a read of a revision before the restore returns %v", err)
	}
}

func (o *operator) number(text string) int64 {
	o.t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(o.sh(text)), 10, 64)
	if err != nil {
		o.t.Fatal(err)
	}
	return n
}
