package inspect

import (
	"time"

	"github.com/berthhq/berth/coordinator/run"
)

// Coordinator is the leader, which admits runs, and the other candidates.
type Coordinator struct {
	Leader *Candidate  `json:"leader" doc:"The coordinator that admits runs; null if there is none."`
	Others []Candidate `json:"others" nullable:"false" doc:"The candidates that would take over, in order."`
}

// Candidate is a candidate for coordinator.
type Candidate struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`
	Term     int64     `json:"term" doc:"Larger for every later leader."`
	Tick     *Tick     `json:"tick,omitempty" doc:"The last tick of the leader."`
}

// Tick is the outcome of one tick of the leader.
type Tick struct {
	At         time.Time `json:"at"`
	Took       Duration  `json:"took"`
	Number     int64     `json:"number" doc:"Counts the ticks of the term."`
	Queued     int       `json:"queued" doc:"Runs in the queue."`
	InProgress int       `json:"in_progress" doc:"Runs that were not_started or running."`
	Admitted   int       `json:"admitted"`
	Lost       int       `json:"lost" doc:"Runs whose executor was lost, or never came."`
	Blocked    int       `json:"blocked" doc:"Runs whose block reason changed."`
}

// CoordinatorOf returns the record of the candidates. The first leads.
func CoordinatorOf(all []run.Candidate) Coordinator {
	out := Coordinator{Others: []Candidate{}}
	for i, c := range all {
		one := Candidate{Host: c.Host, Instance: c.Instance, Version: c.Version, Since: c.Since, Term: c.Term}
		if t := c.Tick; t != nil {
			one.Tick = &Tick{
				At: t.At, Took: Duration(t.Took), Number: t.Number, Queued: t.Queued,
				InProgress: t.Progress, Admitted: t.Admitted, Lost: t.Lost, Blocked: t.Blocked,
			}
		}
		if i == 0 {
			out.Leader = &one
			continue
		}
		out.Others = append(out.Others, one)
	}
	return out
}
