package bench

import "context"

// part runs beside a load until it is stopped.
type part struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	err    error         // then, why
}

// start runs a part. It outlives the context, and is named in profiles as that is.
func start(ctx context.Context, run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = run(ctx)
	}()
	return p
}

// stop ends a part, and waits for that.
func (p *part) stop() {
	p.cancel()
	<-p.done
}
