package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/text"
)

func benchQueueCommand() *cli.Command {
	return &cli.Command{
		Name:  "queue",
		Usage: "measure the queue and the coordinator beside what etcd itself costs",
		Flags: benchFlags(bench.DefaultQueueClients, "submit/64c",
			&cli.IntFlag{Name: "queued", Value: bench.DefaultQueued, Usage: "`NUMBER` of runs that wait while plans and the memory of a leader are measured; targets are about the default"},
		),
		Action: benchmark{benchQueueSizes, benchQueueTable}.run,
		Description: "submit: clients submit runs in a closed loop, in alternation with the floor: one\n" +
			"plain put for each run, as large as its record. admit: a coordinator leads and has\n" +
			"room, and an executor waits; the time is that from the answer to a submission until\n" +
			"the executor has seen that its run may go. plan: what a tick has to decide over a\n" +
			"long queue with 50 limits of tags and 1,000 runs in progress. leader: the memory\n" +
			"that a coordinator takes over such a queue.\n\n" +
			"The coordinator runs in this process, below a prefix of its own: those that lead\n" +
			"elsewhere take no part. All that is written is below bench/ under the prefix, and\n" +
			"deleted at the end. Do not run it on an etcd that others need now.",
	}
}

// benchQueueSizes reads what to measure of the queue.
func benchQueueSizes(c *cli.Context) (bench.Config, error) {
	cfg, err := benchSizes(c)
	cfg.Suite, cfg.Queued = bench.Queue, c.Int("queued")
	return cfg, err
}

// benchQueueTable writes the cases of the queue.
func benchQueueTable(out *page, rows []*bench.Row) {
	var cells [][]string
	for _, r := range rows {
		line := []string{r.Name, "", "", "", "", "", "", "", ""}
		switch {
		case r.Submissions != nil:
			line = append(line[:1],
				fmt.Sprintf("%.0f", r.Reference.PerSecond), fmt.Sprintf("%.0f", r.Submissions.PerSecond),
				fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High),
				latency(r.Reference.Put), latency(r.Submissions.Submit), "", "")
		case r.Admissions != nil:
			line[5], line[7] = latency(r.Reference.Put), latency(r.Admissions.Seen)
		case r.Plan != nil:
			line[8] = latency(r.Plan)
		default:
			continue // it has failed, or a line of its own
		}
		cells = append(cells, line)
	}
	if len(cells) > 0 {
		out.table("", []string{
			"CASE", "FLOOR/S", "RUNS/S", "RATIO", "ROUNDS", "PUT MS", "SUBMIT MS", "SEEN MS", "PLAN MS",
		}, cells)
		out.line("RATIO is the median of the rounds; times in ms are p50/p99.")
	}
	for _, r := range rows {
		if l := r.Leader; l != nil {
			out.line("%s: %s queued, %d in progress, %s of tags: %.1f MB of Go's heap, %.1f MB resident and %.1f MB at the peak, beside %.1f MB of the benchmark; all reasons noted after %.1fs",
				r.Name, text.Count(l.Queued, "run"), l.InProgress, text.Count(l.TagLimits, "limit"), l.Heap, l.Resident, l.Peak, l.Before, l.Seconds)
		}
	}
}
