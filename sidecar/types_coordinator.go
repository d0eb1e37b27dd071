package sidecar

import (
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/coordinator/run"
)

// Coordinator is who admits runs now, and who would.
type Coordinator struct {
	Leader *Candidate  `json:"leader" doc:"Who admits runs; null if nobody does."`
	Others []Candidate `json:"others" nullable:"false" doc:"Who would take over, in order."`
}

// TransformSchema says in the OpenAPI document that there may be no leader.
func (Coordinator) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	leader := *s.Properties["leader"]
	s.Properties["leader"] = &huma.Schema{
		Description: leader.Description,
		OneOf:       []*huma.Schema{{Ref: leader.Ref}, {Type: "null"}},
	}
	return s
}

// Candidate stands for the coordinator's part.
type Candidate struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`
	Term     int64     `json:"term" doc:"Grows from leader to leader."`
	Tick     *Tick     `json:"tick,omitempty" doc:"Its last one; of the leader, once there was one."`
}

// Tick is what one tick of the leader came to.
type Tick struct {
	At         time.Time `json:"at"`
	Took       Duration  `json:"took"`
	Number     int64     `json:"number" doc:"Counts those of the term."`
	Queued     int       `json:"queued" doc:"Runs that it saw in the queue."`
	InProgress int       `json:"in_progress" doc:"Runs that it saw not_started or running."`
	Admitted   int       `json:"admitted"`
	Lost       int       `json:"lost" doc:"Runs whose executor was gone, or never came."`
	Blocked    int       `json:"blocked" doc:"Runs that were given a new reason for their wait."`
}

// CoordinatorOf tells of the candidates, of whom the first leads.
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
