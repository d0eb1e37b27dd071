package ui

import (
	"context"
	"net/http"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// queuePage is what the page of the queue shows.
type queuePage struct {
	// Waiting is how many runs are queued, and InProgress how many count against the
	// limits.
	Waiting, InProgress int
	// Leader is who admits runs; empty if nobody does.
	Leader     string
	Limits     limitsView
	Filter     filterForm
	Rows       []queueRow
	Pager      listPager
	Unreadable unreadableRuns
}

// queueRow is a queued run.
type queueRow struct {
	Position        int // 0 of one whose time has not come
	ID, Name, Owner string
	Priority        int
	Since           time.Time
	// Reason is why it still waits, and Kind what is in the way; it is empty before the
	// coordinator has found out.
	Reason string
	Kind   run.BlockKind
	// Steps are those that it has, and Pools the slots that it needs as a whole.
	Steps stepChips
	Pools []poolSlots
	Tags  tagList
	// Attempt counts its starts so far.
	Attempt int
}

// poolSlots are slots of a pool.
type poolSlots struct {
	Pool  string
	Slots int
}

// queueLook is what the page takes of the runs, while nobody changes them.
type queueLook struct {
	stretch    stretch
	positions  []int // of its rows, in the whole queue
	waiting    int
	use        tagUse
	unreadable unreadableRuns
}

func lookAtQueue(set *runSet, f *runFilter, after listPlace) queueLook {
	l := queueLook{waiting: len(set.queue.all), use: tagUseOf(set), unreadable: set.unreadable()}
	if f.Wrong != "" {
		return l
	}
	l.stretch = set.queue.only(f).stretchBehind(after, rowsPerPage)
	for _, r := range l.stretch.rows {
		at, _ := set.queue.find(r.Run)
		if r.Deferred() { // they come last
			at = -1
		}
		l.positions = append(l.positions, at+1)
	}
	return l
}

// viewQueue reads the page of the queue.
func (p *Pages) viewQueue(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	at := listAddressOf(r, "q", "tag", "limits", "after")
	f := parseRunFilter(at.query)
	after, err := afterOf(at.query)
	if err != nil {
		return nil, err
	}
	around, err := p.board.around.look(ctx, s)
	if err != nil {
		return nil, err
	}
	var l queueLook
	if err := p.board.look(ctx, s.Runs, func(set *runSet) { l = lookAtQueue(set, &f, after) }); err != nil {
		return nil, err
	}
	steps, err := p.board.chips.look(ctx, s.Runs, l.stretch.rows)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Queue", Data: queueOf(l, around, steps, f, at)}, nil
}

// queueOf makes the page.
func queueOf(l queueLook, around surroundings, steps map[submitted]stepChips, f runFilter, at listAddress) queuePage {
	page := queuePage{
		Waiting: l.waiting, InProgress: l.use.runs, Leader: leaderOf(around.candidates),
		Limits: limitsOf(around, l.use, at),
		Filter: f.form(at, "limits"), Pager: pagerOf(l.stretch, at), Unreadable: l.unreadable,
	}
	space := pool.NewSpace(around.pools...)
	for i, r := range l.stretch.rows {
		row := queueRow{
			Position: l.positions[i], ID: r.ID, Name: text.Visible(r.Name), Owner: text.Visible(r.Owner), Priority: r.Priority, Since: r.QueuedAt,
			Steps: steps[submittedOf(r.Run)], Tags: at.tags(r.Tags), Attempt: r.Attempt,
		}
		for name, slots := range sortedPools(r.Pools) {
			row.Pools = append(row.Pools, poolSlots{name, slots})
		}
		row.Reason, row.Kind = reasonOf(r.Run, space)
		page.Rows = append(page.Rows, row)
	}
	return page
}

// reasonOf says why a run still waits. Of pools it has the numbers of now, while what is
// noted is no newer than it must be to be true.
func reasonOf(r *run.Run, space *pool.Space) (string, run.BlockKind) {
	b := r.BlockAt(time.Now())
	if b == nil {
		return "", ""
	}
	s := b.Text
	if b.Kind == run.BlockPool {
		if exact := space.Why(r.Pools); exact != "" {
			s = exact
		}
	}
	return text.Visible(s), b.Kind
}

// leaderOf names who admits runs.
func leaderOf(candidates []run.Candidate) string {
	switch {
	case len(candidates) == 0:
		return ""
	case candidates[0].Host == "":
		return "a coordinator of another version"
	}
	return text.Visible(candidates[0].Host + "/" + candidates[0].Instance)
}
