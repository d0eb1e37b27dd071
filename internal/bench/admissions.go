package bench

import (
	"context"
	"errors"

	"github.com/berthhq/berth/coordinator/run"
)

// admissions is the door for one client: it submits a run, which does not count, and
// waits for it as the executor.
type admissions struct {
	*submissions
	leader   *leader
	executor *runWatch // that sees which runs are admitted
	run      string    // that is waited for
}

// openAdmissions starts a coordinator under limits that leave room for all, and an
// executor.
func (r *runner) openAdmissions(ctx context.Context) (_ *admissions, err error) {
	s, err := r.openSubmissions()
	if err != nil {
		return nil, err
	}
	a := &admissions{submissions: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	unlimited := run.Unlimited
	if _, err := a.store.SetLimits(ctx, run.LimitsChange{MaxConcurrentRuns: &unlimited}); err != nil {
		return nil, err
	}
	if a.executor, err = r.watchRuns(ctx, func(s run.Status) bool { return s == run.NotStarted }); err != nil {
		return nil, err
	}
	a.leader, err = r.lead(ctx)
	return a, err
}

// prepare submits the next run.
func (a *admissions) prepare(ctx context.Context, _ int) error {
	a.run = newID()
	_, _, err := a.store.Submit(ctx, a.run, crowdSpec(0))
	return err
}

func (a *admissions) claim(ctx context.Context, _ int) (held, error) {
	_, err := a.executor.wait(ctx, a.run)
	return nil, err
}

func (a *admissions) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if a.leader != nil {
		errs = append(errs, a.leader.close())
	}
	if a.executor != nil {
		errs = append(errs, a.executor.close())
	}
	errs = append(errs, a.runner.wipe(ctx, a.runner.keys().Limits()))
	return errors.Join(append(errs, a.submissions.close())...)
}
