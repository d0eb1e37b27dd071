//go:build linux

package docs_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// servers follow how-to/server.md on loopback addresses of their own.
type servers struct {
	*operator
	// network replaces 10.0.0. of the page.
	network string
	builds  map[string]string // folders of the binary, by server
	running map[string]*exec.Cmd
}

func newServers(t *testing.T) *servers {
	t.Helper()
	if testing.Short() {
		t.Skip("it runs other processes: there is nothing to see for the race detector")
	}
	dir, err := os.MkdirTemp("", "berth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &servers{
		operator: &operator{t: t, dir: dir}, builds: map[string]string{}, running: map[string]*exec.Cmd{},
		network: fmt.Sprintf("127.%d.%d.", 64+rand.IntN(64), rand.IntN(256)),
	}
	s.env = []string{"PATH=" + build(t) + ":" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "BERTH_HOST=operator"}
	t.Cleanup(func() {
		for name := range s.running {
			s.kill(name)
		}
		for _, name := range []string{"a", "b", "c"} {
			if text, err := os.ReadFile(filepath.Join(dir, name+".log")); t.Failed() && err == nil {
				t.Logf("%s: %s", name, text)
			}
		}
	})
	return s
}

// text returns the block of the page that begins with a command, for a server.
func (s *servers) text(command, name string) string {
	s.t.Helper()
	for _, p := range pages(s.t) {
		for _, b := range p.blocks {
			if p.name == "how-to/server.md" && strings.HasPrefix(b.text, command) {
				return s.on(name, b.text)
			}
		}
	}
	s.t.Fatalf("no block of how-to/server.md begins with %s", command)
	return ""
}

// on returns a text of the page with the addresses here, and with the name, the data and the files of a
// server instead of those of a.
func (s *servers) on(name, text string) string {
	return strings.NewReplacer(
		"--name a", "--name "+name, "/var/lib/berth", filepath.Join(s.dir, name),
		"certs/a.", "certs/"+name+".", "10.0.0.", s.network,
	).Replace(text)
}

// start starts a server with a command of the page.
func (s *servers) start(name, text string) {
	s.t.Helper()
	cmd := s.command("bash", "-c", "exec "+text)
	cmd.Env = append(slices.Clone(s.env), "BERTH_LISTEN="+s.network+"1:0", "BERTH_HOST=", "BERTH_SOCKET="+filepath.Join(s.dir, name+".sock"))
	if dir := s.builds[name]; dir != "" {
		cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	}
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.running[name] = cmd
}

// stop stops servers with a signal, all at the same time, and waits for their ends.
func (s *servers) stop(sig syscall.Signal, names ...string) {
	s.t.Helper()
	for _, name := range names {
		_ = s.running[name].Process.Signal(sig)
	}
	for _, name := range names {
		if err := s.running[name].Wait(); err != nil && len(names) == 1 && sig != syscall.SIGKILL {
			s.t.Errorf("%s: %v", name, err)
		}
		delete(s.running, name)
	}
}

func (s *servers) kill(name string) { s.stop(syscall.SIGKILL, name) }

// healthy waits until all of some members are healthy.
func (s *servers) healthy(members int) {
	s.t.Helper()
	s.sh(fmt.Sprintf("until berth cluster status | grep -q '^%d of %d '; do sleep 0.1; done; until berth cluster status; do sleep 0.1; done", members, members))
}

// jobs are commands under limits that run again and again.
type jobs struct {
	s    *servers
	log  string
	stop string // a file that ends them
	gate string // a file without which holders do not end
	all  sync.WaitGroup
	mu   sync.Mutex
	bad  []string
	done int
	// ends is how many have written that they end, and fence the largest fencing token, as of the last judge.
	ends  int
	fence int64
}

// limits are those of the pools: that of the page, and one of which each fifth job needs slots, too.
var limits = map[string]int{"db": 20, "disk": 3}

// startJobs starts n loops, each of which claims one or two slots of the pool db, writes when it begins and
// ends, and claims again. They hold their slots until open is called.
func (s *servers) startJobs(n int) *jobs {
	s.t.Helper()
	j := &jobs{s: s, log: filepath.Join(s.dir, "jobs.log"), stop: filepath.Join(s.dir, "stop"), gate: filepath.Join(s.dir, "gate")}
	_, _ = os.Remove(j.stop), os.Remove(j.gate)
	script := fmt.Sprintf(`n=0
until [ -e %[1]s ] && [ $n -gt 1 ]; do
	berth exec $POOLS --wait 5m -- sh -c 'echo "+ $$ $BERTH_FENCE $BERTH_POOLS" >> %[2]s
		until [ -e %[3]s ]; do sleep 0.1; done; sleep 2
		echo "- $$ $BERTH_FENCE $BERTH_POOLS" >> %[2]s' || exit
	n=$((n+1))
done
echo $n`, j.stop, j.log, j.gate)
	for i := range n {
		j.all.Go(func() {
			cmd := s.command("sh", "-c", script)
			pools := fmt.Sprintf("POOLS=--pool db=%d", 1+i%2)
			if i%5 == 0 {
				pools += " --pool disk"
			}
			cmd.Env = append(slices.Clone(s.env), fmt.Sprintf("BERTH_HOST=job-%d", i), pools)
			var trouble strings.Builder
			cmd.Stderr = &trouble
			out, err := cmd.Output()
			count, _ := strconv.Atoi(strings.TrimSpace(string(out)))
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.done += count; err != nil || count == 0 {
				j.bad = append(j.bad, fmt.Sprintf("%v\n%s", err, trouble.String()))
			}
		})
	}
	return j
}

// reserved is how many slots may stay free for a job that waits for slots of both pools.
const reserved = 2

// open waits until the pool db is full while others wait, and lets the holders end.
func (j *jobs) open() {
	j.s.t.Helper()
	j.s.untilDB(func(claimed, waiting int) bool { return claimed >= limits["db"]-reserved && waiting > 0 })
	j.s.sh("touch " + j.gate)
}

// untilDB waits until a condition holds for the slots of the pool db that are claimed, and its waiters.
func (s *servers) untilDB(holds func(claimed, waiting int) bool) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		var db struct{ Claimed, Waiting int }
		text := s.sh("berth pools info db -o json 2>/dev/null") // without that it waits for etcd
		if err := json.Unmarshal([]byte(text), &db); err != nil {
			s.t.Fatalf("%v: %s", err, text)
		}
		if holds(db.Claimed, db.Waiting) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d slots of pool db are claimed, and %d wait", db.Claimed, db.Waiting)
		}
	}
}

// end ends the jobs, none of which may have failed, and judges them.
func (j *jobs) end() {
	t := j.s.t
	t.Helper()
	if err := os.WriteFile(j.stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.all.Wait()
	for _, bad := range j.bad {
		t.Errorf("a job failed: %s", bad)
	}
	j.judge()
	if j.ends != j.done {
		t.Errorf("%d of %d jobs have written their ends", j.ends, j.done)
	}
}

// judge reads what the jobs have written since the last time, now that none holds slots. No more slots may
// have been held than a limit at any time, and all fencing tokens must be larger than those of the last
// time. Claims that one transaction grants have the same token.
func (j *jobs) judge() {
	t := j.s.t
	t.Helper()
	text, err := os.ReadFile(j.log)
	if err == nil {
		err = os.Remove(j.log)
	}
	if err != nil {
		t.Fatal(err)
	}
	holders, used, peak, ends, least := map[string]bool{}, map[string]int{}, map[string]int{}, 0, j.fence
	for line := range strings.Lines(string(text)) {
		what, holder, _ := strings.Cut(strings.TrimSpace(line), " ")
		_, claim, _ := strings.Cut(holder, " ")
		fence, pools, _ := strings.Cut(claim, " ")
		n, err := strconv.ParseInt(fence, 10, 64)
		if err != nil || n <= least || holders[holder] != (what == "-") {
			t.Errorf("a job has the fencing token %q, and %d was issued before, or it began or ended twice: %s", fence, least, line)
		}
		count := 1
		if what == "-" {
			count = -1
			ends++
		}
		holders[holder] = what == "+"
		for one := range strings.SplitSeq(pools, ",") {
			pool, slots, _ := strings.Cut(one, "=")
			n, err := strconv.Atoi(slots)
			if limits[pool] == 0 || err != nil {
				t.Fatalf("a job holds %q", pools)
			}
			used[pool] += count * n
			peak[pool] = max(peak[pool], used[pool])
		}
		j.fence = max(j.fence, n)
	}
	for pool, limit := range limits {
		if peak[pool] > limit || used[pool] != 0 {
			t.Errorf("%d slots of pool %s were held at a time, its limit is %d; %d are at last", peak[pool], pool, limit, used[pool])
		}
	}
	j.ends += ends
	t.Logf("%d jobs, with at most %v of %v slots at a time", ends, peak, limits)
}

// runs waits until the jobs have written 2n more lines: about n more runs.
func (j *jobs) runs(n int) {
	j.s.t.Helper()
	j.s.sh(fmt.Sprintf("touch %[1]s; from=$(wc -l < %[1]s); until [ $(wc -l < %[1]s) -ge $((from + %d)) ]; do sleep 0.1; done", j.log, 2*n))
}

func TestThreeServersDoWhatThePageSays(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	newer := filepath.Join(s.dir, "newer")
	const version = "v0.0.1-newer"
	cmd := exec.Command("make", "-C", "..", "build", "BIN="+filepath.Join(newer, "berth"), "VERSION="+version)
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	begun := time.Now()
	s.sh(s.text("berth certs init", "a"))
	names := []string{"a", "b", "c"}
	for _, name := range names {
		s.start(name, s.text("berth server --name a --data-dir", name))
	}
	s.env = append(s.env,
		"BERTH_ENDPOINTS="+s.on("a", "https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379"),
		"BERTH_CACERT=certs/ca.crt", "BERTH_CERT=certs/fleet.crt", "BERTH_KEY=certs/fleet.key")
	s.healthy(3)
	s.sh(s.text("export BERTH_ENDPOINTS", "a"))
	t.Logf("three servers from nothing: %s", time.Since(begun).Round(100*time.Millisecond))
	s.sh("berth pools set db 20 --lease-duration 1m; berth pools set disk 3 --lease-duration 1m")
	j := s.startJobs(50)
	j.open()
	j.runs(20)

	// A server loses its data while a job of its host has a slot, and is replaced.
	s.sh("berth pools set kept 1 --lease-duration 1h")
	s.sh("berth exec --sidecar unix://$PWD/c.sock --pool kept -- sleep 1000 > kept.log 2>&1 & echo $! > kept; until berth claims list | grep ' kept='; do sleep 0.1; done")
	s.kill("c")
	s.sh("kill -9 $(cat kept)")
	if err := os.RemoveAll(filepath.Join(s.dir, "c")); err != nil {
		t.Fatal(err)
	}
	s.sh("! berth cluster status")
	j.runs(20)
	s.sh("berth cluster member replace c > replaced; grep 'host c still holds 1 claim' replaced; grep 'berth cluster member replace c --free' replaced")
	s.start("c", s.text("berth server --name a --data-dir", "c"))
	s.healthy(3)
	s.sh("until (berth ready --sidecar unix://$PWD/c.sock 2>&1 || true) | grep 'has leases'; do sleep 0.1; done")
	s.sh(strings.TrimSpace(s.text("berth cluster member replace c --free", "c")) + " > freed; grep 'their fencing tokens may still be in use: [0-9]' freed")
	s.sh("until berth ready --sidecar unix://$PWD/c.sock; do sleep 0.1; done; ! berth claims list | grep ' kept='")
	j.runs(20)

	// All are upgraded, one after the other.
	s.sh(s.text("berth cluster upgrade check", "a"))
	for _, name := range names {
		s.builds[name] = newer
		s.stop(syscall.SIGHUP, name)
		s.start(name, s.text("berth server --name a --data-dir", name))
		s.healthy(3)
		j.runs(20)
	}
	s.sh("test $(berth hosts list | grep -c '" + version + "') -ge 3")
	s.sh("berth cluster defrag")
	s.sh("berth cluster snapshot berth.db")
	j.end()
	s.sh("berth pools set later 1")

	s.stop(syscall.SIGTERM, names...)
	for _, name := range names {
		s.sh(s.on(name, "mv /var/lib/berth/etcd /var/lib/berth/etcd.old"))
	}
	s.sh(s.text("berth cluster restore", "a"))
	for _, name := range names {
		s.start(name, s.text("berth server --name a --data-dir", name))
	}
	s.healthy(3)
	s.sh("berth pools list | grep -q '^db '; ! berth pools info later")
	// The claims of the snapshot hold their slots until their leases end.
	s.untilDB(func(claimed, _ int) bool { return claimed == 0 })
	least := j.fence
	j = s.startJobs(50)
	j.fence = least
	j.open()
	j.runs(20)
	j.end()
	s.sh("berth verify")
	s.stop(syscall.SIGTERM, "a")
	s.stop(syscall.SIGTERM, "b", "c")
}

func TestAServerGrowsToACluster(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	s.sh(s.text("berth certs init", "a"))
	// At first it is alone, and only its user finds it; then it serves others.
	alone := s.text("berth server --name a --data-dir /var/lib/berth\n", "a")
	s.start("a", alone)
	s.sh("export BERTH_ENDPOINTS=" + s.on("a", "unix:///var/lib/berth/etcd/etcd.sock") + "; until berth cluster status; do sleep 0.1; done; berth pools set db 20")
	s.stop(syscall.SIGTERM, "a")
	s.start("a", s.text("berth server --name a --data-dir /var/lib/berth --etcd-listen", "a"))
	s.sh("export BERTH_ENDPOINTS=" + s.on("a", "https://10.0.0.1:2379") + " BERTH_CACERT=certs/ca.crt BERTH_CERT=certs/fleet.crt BERTH_KEY=certs/fleet.key; until berth cluster status; do sleep 0.1; done; berth pools info db")
	s.stop(syscall.SIGTERM, "a")

	s.start("a", s.text("berth server --name a --cluster", "a"))
	s.env = append(s.env, "BERTH_ENDPOINTS="+s.on("a", "https://10.0.0.1:2379"), "BERTH_CACERT=certs/ca.crt", "BERTH_CERT=certs/fleet.crt", "BERTH_KEY=certs/fleet.key")
	s.healthy(1)
	// Server b has run alone before, and must not serve its own cluster next to that of a.
	page := s.text("berth server --name a --cluster", "b")
	with := func(cluster string) string {
		return strings.Replace(strings.TrimSpace(page), s.on("b", "a=https://10.0.0.1:7423"), s.on("b", cluster), 1)
	}
	s.start("b", with("b=https://10.0.0.2:7423"))
	s.sh("until berth cluster status --endpoints " + s.on("b", "https://10.0.0.2:2379") + "; do sleep 0.1; done")
	s.stop(syscall.SIGTERM, "b")
	s.sh("! BERTH_LISTEN=" + s.network + "2:0 " + with("a=https://10.0.0.1:7423,b=https://10.0.0.2:7423") + " 2> refused; grep 'the data of another cluster than server .a. at https' refused")
	s.sh(s.on("b", "mv /var/lib/berth/etcd /var/lib/berth/etcd.alone"))
	for i, name := range []string{"b", "c"} {
		members := strings.Join(strings.Split("a=https://10.0.0.1:7423,b=https://10.0.0.2:7423,c=https://10.0.0.3:7423", ",")[:i+2], ",")
		s.start(name, strings.Replace(s.text("berth server --name a --cluster", name), s.on(name, "a=https://10.0.0.1:7423"), s.on(name, members), 1))
		s.healthy(i + 2)
	}
	s.env[slices.IndexFunc(s.env, func(v string) bool { return strings.HasPrefix(v, "BERTH_ENDPOINTS=") })] = "BERTH_ENDPOINTS=" + s.on("a", "https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379")
	s.kill("a")
	s.sh("until berth exec --pool db -- true; do sleep 0.1; done")

	// With its data from the cluster, a does not start alone.
	s.sh("! env -u BERTH_CACERT -u BERTH_CERT -u BERTH_KEY " + strings.TrimSpace(alone) + " --listen " + s.network + "1:0 2> refused; grep 'cluster: is not set, and the data directory has the data of a cluster of 3 members' refused")
}

func TestThreeServersOnOneMachineDoWhatThePageSays(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	local := strings.NewReplacer("127.0.0.", s.network)
	cluster, lines, _ := strings.Cut(local.Replace(s.text("cluster=", "a")), "\n")
	for line := range strings.Lines(lines) {
		line, ok := strings.CutSuffix(strings.TrimSpace(line), " &")
		name := strings.Fields(line)[3]
		if !ok || !strings.HasPrefix(line, "berth server --name "+name+" --host "+name) {
			t.Fatalf("the page starts a server by %q", line)
		}
		s.start(name, strings.ReplaceAll(line, "$cluster", strings.TrimPrefix(cluster, "cluster=")))
	}
	status := strings.TrimSpace(local.Replace(s.text("berth cluster status --endpoints", "a")))
	s.sh("until " + status + " && " + status + " | grep '^3 of 3 '; do sleep 0.1; done")
	for i, name := range []string{"a", "b", "c"} {
		s.sh(fmt.Sprintf("until berth ready --sidecar http://%s%d:7420; do sleep 0.1; done; grep 'etcd is open' %s.log", s.network, i+1, name))
	}
	s.stop(syscall.SIGTERM, "a", "b", "c")
}
