package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

// Member is a server that belongs to a cluster.
type Member struct {
	Name string
	// PeerURL is its address for the other members, ClientURL its address for clients.
	PeerURL, ClientURL string
}

// Founding finds out how a server without data starts: see the package comment.
type Founding struct {
	Self   Member
	Others []Member
	// Listen is the address at which etcd will serve clients. Until etcd runs, the server answers
	// the other members there.
	Listen string
	// TLS returns the configuration for both sides of connections between members; nil for
	// connections without TLS.
	TLS func() *tls.Config
	// Username and Password belong to an etcd user with the role root, which is needed to join a
	// cluster with users. They are empty if etcd has no users, or if the certificate names the
	// user.
	Username, Password string
	// Waits, if not nil, is called with what the server waits for, whenever that was checked.
	Waits func(what string)
	Log   hclog.Logger
}

// wait passes on what the server waits for.
func (f *Founding) wait(what string) {
	if f.Waits != nil {
		f.Waits(what)
	}
}

// Start describes how a server starts etcd.
type Start struct {
	// Members are the peer addresses ("host:port") of the members, by name.
	Members map[string]string
	// Token makes the identity of a cluster with a single member unique. It is empty for larger
	// clusters, whose members have to agree on their identity.
	Token string
	// Joins reports whether the cluster already exists and has this server as a member.
	Joins bool
}

const (
	// foundingPath is the path at which a server without data answers the other members.
	foundingPath = "/berth/founding"
	// foundingEvery is the interval between requests to the other members, foundingTimeout the
	// longest wait for one answer.
	foundingEvery, foundingTimeout = 300 * time.Millisecond, 3 * time.Second
	// foundingRemind is how often the log says what the server waits for.
	foundingRemind = 15 * time.Second
	// maxFounding is the longest accepted answer, in bytes.
	maxFounding = 64 << 10
)

// foundingState is the answer of a server without data.
type foundingState struct {
	Name string `json:"name"`
	// Members are the members of its configuration, sorted.
	Members []string `json:"members"`
	// Empty names the other members that have reported to this server that they have no data. Ready
	// names those of them that have received this report from all their other members.
	Empty []string `json:"empty"`
	Ready []string `json:"ready"`
}

// errNotAsked is the first answer of a member.
var errNotAsked = errors.New("not asked yet")

// errServes is returned for a member that serves etcd, and so has data.
var errServes = errors.New("it serves etcd")

// Run waits until it is known how the server starts, and answers the other members until then. Its
// error says what the operator has to change, or that ctx has ended.
func (f *Founding) Run(ctx context.Context) (Start, error) {
	if len(f.Others) == 0 {
		return f.Together(), nil
	}
	p := newAttempt(f)
	l, err := net.Listen("tcp", f.Listen)
	if err != nil {
		return Start{}, err
	}
	if f.TLS != nil {
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: f.serverTLS})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+foundingPath, p.answer)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: foundingTimeout, ErrorLog: f.Log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
	var task sync.WaitGroup
	task.Go(func() { _ = server.Serve(l) })
	start, err := p.run(ctx)
	err = errors.Join(err, server.Close())
	task.Wait()
	return start, err
}

// serverTLS returns the configuration for a connection from another member.
func (f *Founding) serverTLS(*tls.ClientHelloInfo) (*tls.Config, error) {
	c := f.TLS()
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: c.Certificates, ClientCAs: c.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert}, nil
}

// Together returns the start of a new cluster with all members of the configuration.
func (f *Founding) Together() Start {
	s := Start{Members: map[string]string{}}
	if len(f.Others) == 0 {
		s.Token = rand.Text()
	}
	for _, m := range append([]Member{f.Self}, f.Others...) {
		s.Members[m.Name] = hostOf(m.PeerURL)
	}
	return s
}

// members returns the members of the configuration as NAME=URL, sorted.
func (f *Founding) members() []string {
	all := []string{f.Self.Name + "=" + f.Self.PeerURL}
	for _, m := range f.Others {
		all = append(all, m.Name+"="+m.PeerURL)
	}
	slices.Sort(all)
	return all
}

func hostOf(address string) string {
	_, host, _ := strings.Cut(address, "://")
	return host
}

// attempt is one attempt to form a cluster.
type attempt struct {
	f *Founding
	// mu guards the following sets of other members. empty: had no data according to their last
	// answer. ready: knew that all their other members have no data; a member is never removed from
	// this set. all: knew that all their other members are ready.
	mu                sync.Mutex
	empty, ready, all map[string]bool
}

func newAttempt(f *Founding) *attempt {
	return &attempt{f: f, empty: map[string]bool{}, ready: map[string]bool{}, all: map[string]bool{}}
}

// answer answers another member.
func (p *attempt) answer(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	s := foundingState{
		Name: p.f.Self.Name, Members: p.f.members(),
		Empty: slices.Sorted(maps.Keys(p.empty)), Ready: slices.Sorted(maps.Keys(p.ready)),
	}
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // after an error, the other member asks again
}

// run asks the other members until it is known how to start.
//
// A server forms the cluster once all other members know that no member has data. So when it stops
// answering these requests, the other members know enough to form the cluster as well.
func (p *attempt) run(ctx context.Context) (Start, error) {
	tick := time.NewTicker(foundingEvery)
	defer tick.Stop()
	var reminded time.Time
	last := map[string]error{}
	for _, m := range p.f.Others {
		last[m.Name] = errNotAsked
	}
	for {
		p.f.wait(p.missing(last))
		var serves []Member
		for _, m := range p.f.Others {
			err := p.ask(ctx, m)
			if errors.Is(err, errServes) {
				serves = append(serves, m)
			}
			last[m.Name] = err
		}
		if len(serves) > 0 {
			start, err := p.f.Join(ctx, serves)
			if err == nil || errors.As(err, new(*problem.Error)) { // a problem that only the operator can solve
				return start, err
			}
			last[serves[0].Name] = &joinError{serves[0].Name, err}
		} else if p.complete(last) {
			p.f.Log.Info("forming a new cluster", "members", strings.Join(p.f.members(), ","))
			return p.f.Together(), nil
		}
		if now := time.Now(); now.Sub(reminded) >= foundingRemind {
			reminded = now
			p.f.Log.Info("this server has no data: waiting for a member with data, or for all members to form a cluster", p.waits(last)...)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Start{}, context.Cause(ctx)
		}
	}
}

// complete reports whether all other members are ready, and each of them either knows that or no
// longer answers.
func (p *attempt) complete(last map[string]error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.f.Others, func(m Member) bool {
		return !p.ready[m.Name] || !p.all[m.Name] && last[m.Name] == nil
	})
}

// missing returns what the server waits for, after some answers.
func (p *attempt) missing(last map[string]error) string {
	all := text.Count(len(p.f.Others)+1, "server")
	var missing []string
	for _, m := range p.f.Others {
		if joins := (*joinError)(nil); errors.As(last[m.Name], &joins) {
			return "this server has no data, and " + joins.Error()
		}
		if err := last[m.Name]; err != nil {
			missing = append(missing, fmt.Sprintf("%s at %s (%s)", m.Name, m.ClientURL, brief(err)))
		}
	}
	if len(missing) == 0 {
		return "all " + all + " in the setting cluster run, none has data, and they are forming a cluster"
	}
	return "this server has no data: it joins a cluster that it finds, or forms one when all " + all + " in the setting cluster run. It waits for " + strings.Join(missing, ", ")
}

// brief returns the text of an error without the address that was dialed.
func brief(err error) string {
	if refused := syscall.Errno(0); errors.As(err, &refused) {
		return refused.Error()
	}
	return err.Error()
}

// joinError is why a server can't join the cluster of a member yet.
type joinError struct {
	of  string
	err error
}

func (e *joinError) Error() string {
	return fmt.Sprintf("can't join the cluster of %s yet: %s", e.of, rootOf(e.err))
}
func (e *joinError) Unwrap() error { return e.err }

// waits returns the last answers of the other members, as pairs for the log.
func (p *attempt) waits(last map[string]error) []any {
	var all []any
	for _, m := range p.f.Others {
		state := "has no data either"
		if err := last[m.Name]; err != nil {
			state = err.Error()
		}
		all = append(all, m.Name, state)
	}
	return all
}

// ask asks another member whether it has no data.
func (p *attempt) ask(ctx context.Context, m Member) error {
	s, err := p.get(ctx, m)
	if err == nil && s.Name != m.Name {
		err = fmt.Errorf("the server at %s is called %s", m.ClientURL, problem.Quote(s.Name))
	}
	if own := p.f.members(); err == nil && !slices.Equal(s.Members, own) {
		err = fmt.Errorf("its setting cluster differs: %s instead of %s", problem.Quote(strings.Join(s.Members, ",")), strings.Join(own, ","))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.empty, m.Name) // it may have data by now
		return err
	}
	p.empty[m.Name] = true
	if len(s.Empty) == len(p.f.Others) {
		p.ready[m.Name] = true
	}
	if len(s.Ready) == len(p.f.Others) {
		p.all[m.Name] = true
	}
	return nil
}

// get returns the answer of another member. The error is errServes if that member serves etcd.
func (p *attempt) get(parent context.Context, m Member) (s foundingState, err error) {
	ctx, cancel := context.WithTimeout(parent, foundingTimeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	if p.f.TLS != nil {
		transport.TLSClientConfig = p.f.TLS()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.ClientURL+foundingPath, nil)
	if err != nil {
		return s, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return s, unwrapped(err)
	}
	if err != nil || resp.StatusCode == http.StatusNotFound {
		if resp != nil {
			_ = resp.Body.Close()
		}
		if s, ok := p.hasFounded(parent, m); ok {
			return s, nil
		}
		return s, p.servesEtcd(parent, m, err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxFounding)).Decode(&s); err != nil || resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("another program than berth answers at %s: status %d", m.ClientURL, resp.StatusCode)
	}
	return s, nil
}

// hasFounded returns the answer of a member that has formed the cluster and now waits for the
// others, which were stopped before they formed it. At its peer address, etcd lists the members of
// the configuration, none of which has ever run.
func (p *attempt) hasFounded(ctx context.Context, m Member) (s foundingState, ok bool) {
	all, err := p.f.listed(ctx, m)
	if err != nil {
		return s, false
	}
	var members []string
	for _, one := range all {
		if len(one.PeerURLs) != 1 || len(one.ClientURLs) > 0 {
			return s, false
		}
		members = append(members, one.Name+"="+one.PeerURLs[0])
	}
	slices.Sort(members)
	names := make([]string, len(p.f.Others)) // it knew that all members know that none has data
	return foundingState{Name: m.Name, Members: members, Empty: names, Ready: names}, slices.Equal(members, p.f.members())
}

// listedMember is a member as etcd lists it for the other members.
type listedMember struct {
	Name       string   `json:"name"`
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
}

// listed returns the members that a member lists at its peer address. It does so even without a majority.
func (f *Founding) listed(ctx context.Context, m Member) (all []listedMember, err error) {
	transport := &http.Transport{DisableKeepAlives: true}
	if f.TLS != nil {
		transport.TLSClientConfig = f.TLS()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.PeerURL+"/members", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, unwrapped(err)
	}
	defer resp.Body.Close()
	err = json.NewDecoder(io.LimitReader(resp.Body, maxFounding)).Decode(&all)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it does not answer like etcd: status %d", resp.StatusCode)
	}
	return all, nil
}

// servesEtcd returns errServes if a member answers like etcd. Otherwise it returns why, the error
// of the earlier request, or the error of this one if why is nil.
func (p *attempt) servesEtcd(ctx context.Context, m Member, why error) error {
	c, err := Dial(Config{Endpoints: []string{m.ClientURL}, TLS: p.f.TLS})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, foundingTimeout)
	defer cancel()
	if _, err := c.memberList(ctx, false); err == nil {
		return errServes
	} else if why == nil {
		why = err
	}
	return unwrapped(why)
}

// unwrapped returns the cause of a [url.Error], whose text begins with the request, and any other
// error unchanged.
func unwrapped(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}
