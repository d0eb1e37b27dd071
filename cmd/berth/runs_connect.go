package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
)

// probeTimeout bounds the wait for etcd of a command.
const probeTimeout = 30 * time.Second

// connectRuns reaches etcd for a command about runs, and hands it on.
func connectRuns(c *cli.Context, do func(run.Store) error) error {
	s, err := config.Load(config.FromCLI(c), config.Common, config.Etcd, config.Lead)
	if err != nil {
		return err
	}
	log := newLogger(c.App.ErrWriter, s, hclog.Warn)
	backend, err := newBackend(s, log)
	if err != nil {
		return err
	}
	defer backend.Close()
	keys := store.NewKeys(s.Prefix)
	ctx, cancel := context.WithTimeout(c.Context, probeTimeout)
	defer cancel()
	if err := backend.Probe(ctx, keys.Prefix()); err != nil {
		return etcdProblem(err)
	}
	return do(run.Store{
		Backend: backend, Keys: keys,
		Journal: run.NewJournal(backend, keys, operatorName(s), s.RunRetention),
	})
}

// stepsOf is the store of the steps of runs, on the same connection.
func stepsOf(s run.Store) step.Store {
	return step.Store{Backend: s.Backend, Keys: s.Keys, Journal: s.Journal, Group: &store.Group{}}
}

// newBackend makes the connections to etcd, without waiting for it.
func newBackend(s config.Settings, log hclog.Logger) (*store.Client, error) {
	tls, err := s.ClientTLS()
	if err != nil {
		return nil, err
	}
	backend, err := store.NewClient(store.Config{
		Endpoints: s.Endpoints, TLS: tls, Username: s.User, Password: s.Password.Reveal(), Logger: log,
	})
	if err != nil {
		return nil, problem.Field("endpoints", "%w", err)
	}
	return backend, nil
}

// etcdProblem makes a problem of what etcd says to the first request.
func etcdProblem(err error) error {
	code := problem.EtcdUnavailable
	if errors.Is(err, store.ErrDenied) {
		code = problem.EtcdDenied
	}
	return problem.New(code, "%w", err)
}

// operatorName is who an event is by that a command has caused. A command is no
// instance, so nobody else has the name.
func operatorName(s config.Settings) string { return hostName(s) + "/operator" }

// hostName is the name of this machine where none has to be set.
func hostName(s config.Settings) string {
	if s.Host != "" {
		return s.Host
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return strings.ToLower(name)
}

// onRun runs a command whose one argument is a run.
func onRun(c *cli.Context, do func(s run.Store, p *printer, id string) error) error {
	given, err := args(c, "the id of a run")
	if err != nil {
		return err
	}
	if err := run.ValidateID(given[0]); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error { return do(s, p, given[0]) })
}

// unreadable is the error about records that can't be read, after those that can
// were shown; nil if there are none.
func unreadable(bad []error) error {
	const most = 5
	if len(bad) == 0 {
		return nil
	}
	texts := make([]string, 0, most)
	for _, err := range bad[:min(len(bad), most)] {
		texts = append(texts, err.Error())
	}
	if len(bad) > most {
		texts = append(texts, fmt.Sprintf("and %d more", len(bad)-most))
	}
	return problem.New(problem.CorruptValue, "%s can't be read: %s", text.Count(len(bad), "run"), strings.Join(texts, "; "))
}

// unreadableRecords tells the same to programs.
func unreadableRecords(bad []error) []sidecar.Unreadable {
	var all []sidecar.Unreadable
	for _, err := range bad {
		u := sidecar.Unreadable{Reason: err.Error()}
		if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
			u = sidecar.Unreadable{Key: corrupt.Key, Reason: corrupt.Reason.Error()}
		}
		all = append(all, u)
	}
	return all
}

// warnOfNobody tells if nobody will ever admit what is queued.
func warnOfNobody(c *cli.Context, s run.Store) error {
	all, err := s.Candidates(c.Context)
	if err == nil && len(all) == 0 {
		say(c, "warning: %s", nobodyLeads)
	}
	return err
}

const nobodyLeads = "nobody coordinates, so queued runs wait: start 'berth coordinator', 'berth sidecar --coordinator' or 'berth dev'"
