package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthhq/berth/internal/dial"
	"github.com/berthhq/berth/internal/problem"
)

// Config names the etcd to maintain, and the credentials.
type Config struct {
	Endpoints []string
	// Dial connects to one of Endpoints; nil is grpc's own way.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS returns the configuration of connections; nil for connections without TLS.
	TLS                func() *tls.Config
	Username, Password string
}

// Client maintains an etcd.
type Client struct {
	etcd *clientv3.Client
	cfg  Config
	// only is its endpoint if it has one endpoint, and knows why connections to it fail; nil otherwise.
	only *dial.Endpoint
}

// Dial returns a client. It does not wait for a connection, except that a user logs in.
func Dial(cfg Config) (*Client, error) {
	conf := clientv3.Config{
		Endpoints: cfg.Endpoints, Username: cfg.Username, Password: cfg.Password,
		DialTimeout: requestTimeout, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithNoProxy(), grpc.WithChainUnaryInterceptor(pastLearners(len(cfg.Endpoints)))},
	}
	if cfg.Dial != nil {
		conf.DialOptions = append(conf.DialOptions, grpc.WithContextDialer(cfg.Dial))
	}
	if cfg.TLS != nil {
		conf.TLS = cfg.TLS()
	}
	c := &Client{cfg: cfg}
	if len(cfg.Endpoints) == 1 {
		c.only = dial.New(cfg.Endpoints[0], cfg.Dial, cfg.TLS)
		conf.DialOptions = append(conf.DialOptions, grpc.WithTransportCredentials(c.only.Credentials()))
	}
	var err error
	if c.etcd, err = clientv3.New(conf); err != nil {
		return nil, c.loginProblem(err)
	}
	return c, nil
}

// pastLearners sends a request that a learner refuses again: the next endpoint gets it. Learners answer nearly
// no requests until they have a vote.
func pastLearners(endpoints int) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		for i := 1; ; i++ {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if !isOfLearner(err) || i >= endpoints {
				return err
			}
		}
	}
}

// isOfLearner reports whether a learner has refused a request.
func isOfLearner(err error) bool {
	return err != nil && wordsOf(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner)
}

// loginProblem turns the error of a login into a problem.
func (c *Client) loginProblem(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return problem.New(problem.EtcdDenied, "etcd has no user %q with this password; set user and password_file to a user of this etcd: %w", c.cfg.Username, err)
	case c.only != nil && c.only.Lasting():
		return problem.New(problem.EtcdDenied, insecure, c.only.Why(err))
	}
	return problem.New(problem.EtcdUnavailable, "%s", c.why(err))
}

// insecure is the text of a problem with certificates that are not accepted, here or by etcd.
const insecure = "no secure connection to etcd is possible (%s)"

// why returns why a request has failed.
func (c *Client) why(err error) string {
	if c.only != nil && isTransient(err) {
		if text := c.only.Why(err); text != "" {
			return text
		}
	}
	return rootOf(err)
}

// secure returns a problem if certificates are not accepted at any endpoint, so that no other attempt helps.
func (c *Client) secure(ctx context.Context) error {
	var all []string
	for _, at := range c.cfg.Endpoints {
		one, err := c.at(at)
		if err != nil {
			return nil // it has a problem of its own
		}
		try, cancel := context.WithTimeout(ctx, majorityTimeout)
		_, err = one.memberList(try, false)
		cancel()
		_ = one.Close() // the answer was read, or it failed
		if err == nil || !one.only.Lasting() {
			return nil
		}
		all = append(all, one.only.Why(err))
	}
	return problem.New(problem.EtcdDenied, insecure, strings.Join(all, "; "))
}

// Close closes the connections.
func (c *Client) Close() error { return c.etcd.Close() }

// Alarms that a member can report.
const (
	alarmSpace   = "no space"
	alarmCorrupt = "corrupt"
)

// MemberStatus is the current status of a member.
type MemberStatus struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Status is healthy, unreachable, learner, or new. A new member was added and has never run.
	Status string `json:"status"`
	Leader bool   `json:"leader,omitempty"`
	// PeerURLs are its addresses for other members, ClientURLs those for clients.
	PeerURLs   []string `json:"peer_urls"`
	ClientURLs []string `json:"client_urls"`
	Version    string   `json:"version,omitempty"`
	// DBBytes is the size of the database file, UsedBytes the part of it in use, and QuotaBytes the
	// size above which etcd refuses writes. They are 0 if the member does not report them.
	DBBytes    int64 `json:"db_bytes,omitempty"`
	UsedBytes  int64 `json:"used_bytes,omitempty"`
	QuotaBytes int64 `json:"quota_bytes,omitempty"`
	// Lag is the number of changes that the leader has applied and the member has not.
	Lag    uint64   `json:"lag"`
	Alarms []string `json:"alarms,omitempty"`
	// Trouble is why the member can't be reached, or an error that it reports.
	Trouble string `json:"trouble,omitempty"`

	id     uint64
	at     string // the address that it has answered at
	voter  bool
	index  uint64
	leader uint64
}

// Status is the status of a cluster and of its members.
type Status struct {
	// Trouble is why no majority answers, empty if one does. Without a majority, Members are those
	// that one member knows.
	Trouble string         `json:"trouble,omitempty"`
	Members []MemberStatus `json:"members"`
	// Voters is the number of members with a vote, Healthy the number of voters that answer and have a
	// leader.
	Voters  int `json:"voters"`
	Healthy int `json:"healthy"`
	// answer is the number of voters that answer.
	answer int
}

// IsHealthy reports whether all members are healthy and report no alarm.
func (s *Status) IsHealthy() bool {
	return s.Trouble == "" && !slices.ContainsFunc(s.Members, func(m MemberStatus) bool { return m.Status != Healthy || len(m.Alarms) > 0 })
}

// Majority returns how many voters must answer for the cluster to work.
func (s *Status) Majority() int { return s.Voters/2 + 1 }

// Find returns the member with a name, or with an id in hexadecimal digits.
func (s *Status) Find(name string) (*MemberStatus, error) {
	var all []string
	for i, m := range s.Members {
		if m.Name == name || m.ID == name {
			return &s.Members[i], nil
		}
		one := m.label()
		if m.isAdded() {
			one += " (at " + strings.Join(m.PeerURLs, ",") + ", not started)"
		}
		all = append(all, one)
	}
	return nil, problem.New(problem.NotFound, "the cluster has no member %s: its members are %s", problem.Quote(name), strings.Join(all, ", "))
}

// isAdded reports whether the member was added to a running cluster, and has never run. It has no name then.
func (m *MemberStatus) isAdded() bool { return m.Status == New && m.Name == "" }

// label returns the name of a member, or its id if it has no name yet.
func (m *MemberStatus) label() string {
	if m.Name == "" {
		return m.ID
	}
	return m.Name
}

// Values of [MemberStatus.Status].
const (
	Healthy     = "healthy"
	NoLeader    = "no leader"
	Unreachable = "unreachable"
	Learner     = "learner"
	New         = "new"
)

// Status asks each member for its status. It returns an error if no member answers.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	list, err := c.members(ctx)
	trouble := ""
	if problem.CodeOf(err) == problem.EtcdDenied {
		return nil, err
	}
	if err != nil {
		trouble = c.why(err)
		if list, err = c.known(ctx); err != nil {
			return nil, c.problem(err, "no member of the cluster answers")
		}
	}
	s := &Status{Members: make([]MemberStatus, len(list)), Trouble: trouble}
	done := make(chan struct{})
	for i, m := range list {
		go func() {
			s.Members[i] = c.memberStatus(ctx, m, len(list) == 1)
			done <- struct{}{}
		}()
	}
	for range list {
		<-done
	}
	leader := slices.IndexFunc(s.Members, func(m MemberStatus) bool { return m.leader == m.id && m.Version != "" })
	for i := range s.Members {
		m := &s.Members[i]
		m.Leader = i == leader
		if leader >= 0 && m.Version != "" {
			m.Lag = max(s.Members[leader].index, m.index) - m.index
		}
		if m.voter = !list[i].IsLearner; m.voter {
			s.Voters++
		}
		switch m.Status {
		case Healthy:
			s.Healthy++
			s.answer++
		case NoLeader:
			s.answer++
		}
	}
	slices.SortFunc(s.Members, func(a, b MemberStatus) int { return strings.Compare(a.label(), b.label()) })
	return s, nil
}

// majorityTimeout is the longest wait for a majority. It is longer than an election; a majority
// that exists answers at once.
const majorityTimeout = 3 * time.Second

// majorityEvery is the pause between requests during that wait.
const majorityEvery = 100 * time.Millisecond

// members returns the members as a majority knows them.
func (c *Client) members(ctx context.Context) ([]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, majorityTimeout)
	defer cancel()
	for first := true; ; first = false {
		list, err := c.memberList(ctx, true)
		if err == nil {
			return list.Members, nil
		}
		if first {
			if refused := c.secure(ctx); refused != nil {
				return nil, refused
			}
		}
		select {
		case <-time.After(majorityEvery):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// memberList returns the members as a majority knows them, or else as one member knows them. Unlike
// MemberList of etcd's client, it fails at once if connections are refused.
func (c *Client) memberList(ctx context.Context, majority bool) (*etcdserverpb.MemberListResponse, error) {
	return etcdserverpb.NewClusterClient(c.etcd.ActiveConnection()).MemberList(ctx, &etcdserverpb.MemberListRequest{Linearizable: majority})
}

// noAnswer is what is said of a member that does not answer in time.
const noAnswer = "no answer"

// known returns the members as the first member that answers knows them. If none does, the error says why, for each
// endpoint.
func (c *Client) known(ctx context.Context) ([]*etcdserverpb.Member, error) {
	var failed []string
	for _, at := range c.cfg.Endpoints {
		one, err := c.at(at)
		if err != nil {
			return nil, err
		}
		try, cancel := context.WithTimeout(ctx, majorityTimeout)
		list, err := one.memberList(try, false)
		cancel()
		_ = one.Close() // the answer was read, or it failed
		switch {
		case err == nil:
			return list.Members, nil
		case !isTransient(err) && (!isOfLearner(err) || len(c.cfg.Endpoints) == 1):
			return nil, err
		}
		text := one.why(err)
		if !strings.Contains(text, at[strings.LastIndex(at, "/")+1:]) {
			text = at + ": " + text
		}
		failed = append(failed, text)
	}
	return nil, problem.New(problem.EtcdUnavailable, "%s", strings.Join(failed, "; "))
}

// problem turns an error of etcd into a problem. The text what says what has failed, for errors
// that may pass.
func (c *Client) problem(err error, what string) error {
	switch {
	case problem.CodeOf(err) == problem.EtcdUnavailable:
		return problem.New(problem.EtcdUnavailable, "%s: %w", what, err)
	case isTransient(err):
		return problem.New(problem.EtcdUnavailable, "%s (etcd at %s): %s", what, strings.Join(c.cfg.Endpoints, ","), rootOf(err))
	}
	if isOfLearner(err) {
		return problem.New(problem.Precondition, "the etcd at %s is a learner, which answers no requests until it has a vote: set endpoints to other members", strings.Join(c.cfg.Endpoints, ","))
	}
	if of := codeOf(err); of == codes.PermissionDenied || of == codes.Unauthenticated {
		return problem.New(problem.EtcdDenied, "etcd refuses: %s: this needs a user with etcd's role root", wordsOf(err))
	}
	return problem.New(problem.Precondition, "etcd refuses: %s", wordsOf(err))
}

// wordsOf returns what etcd says, without the words of gRPC around it.
func wordsOf(err error) string {
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		return answer.GRPCStatus().Message()
	}
	return err.Error()
}

// codeOf returns the gRPC code of an error, even if etcd's client has converted it.
func codeOf(err error) codes.Code {
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// electionTries is how often a majority is asked that answers, but has no leader: for 15 s.
const electionTries = 5

// working is [Client.Status], and returns an error if the cluster has no majority, so that nothing
// can be changed. It waits for an election.
func (c *Client) working(ctx context.Context) (*Status, error) {
	s, err := c.Status(ctx)
	for try := 1; err == nil && s.Trouble != "" && s.answer >= s.Majority() && try < electionTries; try++ {
		s, err = c.Status(ctx)
	}
	if err == nil && s.Trouble != "" {
		err = problem.New(problem.EtcdUnavailable, "%s", s.NoMajority("nothing can be changed"))
	}
	return s, err
}

// NoMajority says why no majority answers, with what follows from it, and what to do.
func (s *Status) NoMajority(so string) string {
	if s.answer >= s.Majority() {
		return fmt.Sprintf("%d of %d members answer, but they have no leader, so %s: they can't reach each other, or are overloaded; see their logs, and try again", s.answer, s.Voters, so)
	}
	return fmt.Sprintf("only %d of %d members answer, which is not a majority, so %s: start the others, or restore a snapshot ('berth cluster restore')", s.answer, s.Voters, so)
}

// memberStatus asks one member for its status. Its only member is asked at the endpoints of the
// client, too: it may be reached through another address than its own.
func (c *Client) memberStatus(ctx context.Context, m *etcdserverpb.Member, only bool) MemberStatus {
	s := MemberStatus{
		ID: fmt.Sprintf("%x", m.ID), Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Status: Healthy, id: m.ID,
	}
	switch {
	case !hasRun(m):
		s.Status = New
		return s
	case m.IsLearner:
		s.Status = Learner
	}
	all := m.ClientURLs
	if only {
		all = slices.Concat(all, c.cfg.Endpoints)
	}
	var err error
	for _, at := range all {
		var r *etcdserverpb.StatusResponse
		if r, err = c.statusAt(ctx, at); err != nil {
			continue
		}
		s.at = at
		s.Version, s.DBBytes, s.UsedBytes, s.QuotaBytes = r.Version, r.DbSize, r.DbSizeInUse, r.DbSizeQuota
		s.index, s.leader = r.RaftAppliedIndex, r.Leader
		if r.Leader == 0 && s.Status == Healthy {
			s.Status = NoLeader
		}
		for _, e := range r.Errors {
			switch {
			case strings.Contains(e, "NOSPACE"):
				s.Alarms = append(s.Alarms, alarmSpace)
			case strings.Contains(e, "CORRUPT"):
				s.Alarms = append(s.Alarms, alarmCorrupt)
			case s.Status != NoLeader: // which says it
				s.Trouble = e
			}
		}
		return s
	}
	s.Status = Unreachable
	if err != nil {
		s.Trouble = err.Error()
	}
	return s
}

// statusAt asks only the member at the given address.
func (c *Client) statusAt(ctx context.Context, endpoint string) (*etcdserverpb.StatusResponse, error) {
	one, err := c.at(endpoint)
	if err != nil {
		return nil, err
	}
	defer one.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := etcdserverpb.NewMaintenanceClient(one.etcd.ActiveConnection()).Status(ctx, &etcdserverpb.StatusRequest{})
	if err != nil {
		return nil, errors.New(one.why(err))
	}
	return r, nil
}

// at returns a client for one address.
func (c *Client) at(endpoint string) (*Client, error) {
	cfg := c.cfg
	if !slices.Contains(cfg.Endpoints, endpoint) {
		cfg.Dial = nil
	}
	cfg.Endpoints = []string{endpoint}
	return Dial(cfg)
}

// rootOf returns the last part of an error of gRPC, which says what has happened.
func rootOf(err error) string {
	s := status.Convert(err)
	if s.Code() == codes.DeadlineExceeded {
		return noAnswer
	}
	text := s.Message()
	if i := strings.LastIndex(text, `desc = "`); i >= 0 {
		text = text[i+len(`desc = `):]
		if plain, err := strconv.Unquote(text); err == nil {
			text = plain
		}
	}
	if strings.Contains(text, "x509: certificate has expired") {
		return text // the authority is the right one
	}
	if strings.Contains(text, "x509: ") || strings.Contains(text, "remote error: tls: ") {
		text += "; certificates must be signed by one authority: use the files of that of the servers (--cacert, --cert, --key)"
	}
	return text
}

// Replace lets a server without data take the place of a member: it removes the member, and adds a
// learner at a peer address, or at the address of the removed member if peerURL is empty. It
// refuses to remove a member that answers, unless force is set. It always refuses a change after
// which the members that answer would not be a majority. If the member was replaced before, and the server
// has not started since, Replace returns the learner, at peerURL if that is not empty.
func (c *Client) Replace(ctx context.Context, name, peerURL string, force bool) (*Replacement, error) {
	s, err := c.working(ctx)
	if err != nil {
		return nil, err
	}
	old, err := s.Find(name)
	if err != nil {
		if again, err := c.replaceAgain(ctx, s, name, peerURL); again != nil || err != nil {
			return again, err
		}
		return nil, problem.New(problem.NotFound, "%w. A server that was removed needs no replacement: move the folder etcd out of its data directory, start it, and it joins the cluster", err)
	}
	if peerURL == "" {
		peerURL = old.PeerURLs[0]
	} else if err := s.checkSuccessor(old, peerURL); err != nil {
		return nil, err
	}
	if err := c.remove(ctx, s, old, force); err != nil {
		return nil, err
	}
	if err := c.change(ctx, rpctypes.ErrPeerURLExist, func(ctx context.Context) error {
		_, err := c.etcd.MemberAddAsLearner(ctx, []string{peerURL})
		return err
	}); err != nil {
		return nil, problem.New(problem.CodeOf(err), "member %s was removed, but %s could not be added; it is added when the server there starts: %w", old.label(), peerURL, err)
	}
	return s.replacement(old, name, peerURL), nil
}

// Replacement is a member that was replaced.
type Replacement struct {
	// MemberStatus is that of the removed member, with the address of its replacement; or that of the
	// replacement, with the name of the member, if it was added before.
	*MemberStatus
	// Before reports whether the member was replaced before, and its replacement has not started.
	Before bool `json:"replaced_before"`
	// Cluster is the setting cluster with the address of the replacement.
	Cluster string `json:"cluster"`
}

// replacement returns what takes the place of a member.
func (s *Status) replacement(m *MemberStatus, name, peerURL string) *Replacement {
	all := []string{name + "=" + peerURL}
	for _, one := range s.Members {
		if one.id != m.id && one.Name != "" && len(one.PeerURLs) > 0 {
			all = append(all, one.Name+"="+one.PeerURLs[0])
		}
	}
	slices.Sort(all)
	before := m.isAdded()
	m.Name, m.PeerURLs = name, []string{peerURL}
	return &Replacement{MemberStatus: m, Before: before, Cluster: strings.Join(all, ",")}
}

// replaceAgain returns the replacement of a member that is no longer in the cluster: the learner that was added
// and has not run. etcd has at most one, and does not know its name. If peerURL is not empty, that is its address
// from now on. It returns nil if there is none.
func (c *Client) replaceAgain(ctx context.Context, s *Status, name, peerURL string) (*Replacement, error) {
	i := slices.IndexFunc(s.Members, func(m MemberStatus) bool { return m.isAdded() && !m.voter })
	if i < 0 {
		return nil, nil
	}
	m := &s.Members[i]
	if peerURL == "" {
		peerURL = m.PeerURLs[0]
	}
	if !slices.Contains(m.PeerURLs, peerURL) {
		if err := s.checkSuccessor(m, peerURL); err != nil {
			return nil, err
		}
		if err := c.change(ctx, rpctypes.ErrPeerURLExist, func(ctx context.Context) error {
			_, err := c.etcd.MemberUpdate(ctx, m.id, []string{peerURL})
			return err
		}); err != nil {
			return nil, err
		}
	}
	return s.replacement(m, name, peerURL), nil
}

// Remove removes a member for good, under the same conditions as [Client.Replace].
func (c *Client) Remove(ctx context.Context, name string, force bool) (*MemberStatus, error) {
	s, m, err := c.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return m, c.remove(ctx, s, m, force)
}

// find returns a member, and the status of its cluster, which has a majority.
func (c *Client) find(ctx context.Context, name string) (*Status, *MemberStatus, error) {
	s, err := c.working(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := s.Find(name)
	return s, m, err
}

// checkSuccessor returns an error if the successor of a member can't have a peer address.
func (s *Status) checkSuccessor(old *MemberStatus, peerURL string) error {
	scheme, _, _ := strings.Cut(peerURL, "://")
	var schemes []string
	for _, m := range s.Members {
		if m.id == old.id {
			continue
		}
		for _, at := range m.PeerURLs {
			if strings.EqualFold(at, peerURL) {
				return problem.Field("url", "%s is the address of member %s: choose another one", peerURL, m.label())
			}
			used, _, _ := strings.Cut(at, "://")
			schemes = append(schemes, used)
		}
	}
	if len(schemes) > 0 && !slices.Contains(schemes, scheme) {
		return problem.Field("url", "%s begins with %s://, but the other members use %s://", peerURL, scheme, schemes[0])
	}
	return nil
}

// remove removes a member of the cluster with the status s, if [Client.Replace] may do so.
func (c *Client) remove(ctx context.Context, s *Status, m *MemberStatus, force bool) error {
	if len(s.Members) == 1 {
		return problem.New(problem.Precondition, "%s is the only member", m.label())
	}
	if m.Version != "" && !force {
		return problem.New(problem.Precondition, "member %s answers: stop it first, or use --force", m.label())
	}
	if m.voter {
		voters, answer := s.Voters-1, s.answer
		if m.Version != "" {
			answer--
		}
		if answer < voters/2+1 {
			return problem.New(problem.Precondition, "without %s, only %d of %d members would answer, which is not a majority: repair another member first", m.label(), answer, voters)
		}
	}
	return c.change(ctx, rpctypes.ErrMemberNotFound, func(ctx context.Context) error {
		_, err := c.etcd.MemberRemove(ctx, m.id)
		return err
	})
}

// changeTimeout is the longest time for a change of members. etcd refuses changes until members
// have been connected for five seconds.
const changeTimeout = 30 * time.Second

// change changes the members, and tries again after errors that may pass. An attempt with an
// unknown outcome may have made the change: then the next attempt fails with the error made, and
// change returns nil.
func (c *Client) change(ctx context.Context, made error, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	for again := false; ; again = true {
		try, cancel := context.WithTimeout(ctx, requestTimeout)
		err := do(try)
		cancel()
		if err == nil || again && errors.Is(err, made) {
			return nil
		}
		if !isTransient(err) {
			return c.problem(err, "")
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return c.problem(err, "the members could not be changed yet")
		}
	}
}
