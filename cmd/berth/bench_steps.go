package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/text"
)

// What --quick makes of the numbers of steps that are not given.
const (
	quickSteps     = 2_000
	quickHighSteps = 4_000
)

func benchStepsCommand() *cli.Command {
	return &cli.Command{
		Name:  "steps",
		Usage: "measure steps and workers, without limits of tasks and with them",
		Flags: append(
			benchRoundFlags("measure only what has a target, in 3 rounds of 2,000 steps, and 4,000 for 8 workers",
				"`TIME` of the floor in a round; steps take as long as they take", "enabled/4w/10r"),
			&cli.IntFlag{Name: "steps", Value: bench.DefaultSteps, Usage: "`NUMBER` of steps in each load of 4 workers, 100 to 100000"},
			&cli.BoolFlag{Name: "full", Usage: fmt.Sprintf("give 8 workers %d steps, not %d", bench.FullHighSteps, bench.DefaultHighSteps)},
		),
		Action: benchmark{benchStepsSizes, benchStepsTable}.run,
		Description: "Runs of steps that do nothing: no process is started for them. Each case runs in\n" +
			"alternation with the same steps without a task on the same workers; the baseline,\n" +
			"which no limit exists for, with the floor of berth bench claims at 64 clients.\n\n" +
			"  baseline   4 workers, 10 at a time (4w/10r); no pool exists\n" +
			"  unlimited  the steps name a task that has no limit, where another one has\n" +
			"  enabled    all are of one task with limit 80: twice what is in flight, since a\n" +
			"             slot is given back while the next is taken. It does not bind\n" +
			"  mixed      1 of 100 is of a task with limit 10, evenly among the others\n" +
			"  binding    all are of one task with limit 10, a quarter of what could run\n" +
			"  1w/1r      enabled, one at a time: what a slot adds where nothing shares\n" +
			"  high       8 workers, 30 at a time, one task with limit 500, which does not bind\n\n" +
			"Workers and the coordinator run in this process, each on connections and a host\n" +
			"name of its own. All that is written is below bench/ under the prefix, and deleted\n" +
			"at the end. Do not run it on an etcd that others need now: it counts their writes.",
	}
}

// benchStepsSizes reads what to measure of steps.
func benchStepsSizes(c *cli.Context) (bench.Config, error) {
	cfg, err := benchRounds(c)
	cfg.Suite, cfg.Steps, cfg.HighSteps = bench.Steps, c.Int("steps"), bench.DefaultHighSteps
	if cfg.TargetsOnly {
		cfg.HighSteps = quickHighSteps
		if !c.IsSet("steps") {
			cfg.Steps = quickSteps
		}
	}
	if c.Bool("full") {
		cfg.HighSteps = bench.FullHighSteps
	}
	return cfg, err
}

// benchStepsTable writes the cases of steps, each with its reference.
func benchStepsTable(out *page, rows []*bench.Row) {
	var cells [][]string
	for _, r := range rows {
		l := r.StepLoads
		if l == nil {
			continue // it has failed
		}
		if l.Unlimited != nil {
			cells = append(cells, stepCells(r.Name+" without", l.Unlimited))
		} else {
			floor := []string{r.Reference.What, fmt.Sprintf("%.0f", r.Reference.PerSecond)}
			cells = append(cells, append(floor, slices.Repeat([]string{""}, len(stepHeads)-len(floor))...))
		}
		own := stepCells(r.Name, l.Own)
		own[2], own[3] = fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High)
		cells = append(cells, own)
	}
	if len(cells) == 0 {
		return
	}
	out.table("", stepHeads, cells)
	out.line("RATIO is to the line above, the median of the rounds; times in ms are p50/p99. Transactions,")
	out.line("reads, entries of etcd's log, puts and deletes are those of a step from its submission to its")
	out.line("last release; CLAIMS are claims of slots in all rounds, each of which was given back.")
	for _, r := range rows {
		if l := r.StepLoads; l != nil {
			out.line("%s: %s a load, %.1f MB of Go's heap left, %.1f MB resident at the peak beside %.1f MB before; etcd's database %.1f MB, %.1f MB of it in use",
				r.Name, text.Count(r.Steps, "step"), l.Heap, l.Peak, l.Before, l.Database, l.InUse)
			if l.Own.InVain > 0 {
				out.line("%s: %s in vain, of steps that can't fail: they were tried again", r.Name, text.Count(l.Own.InVain, "attempt"))
			}
		}
	}
}

var stepHeads = []string{
	"CASE", "STEPS/S", "RATIO", "ROUNDS", "WORKERS", "TAKE MS", "COMPLETE MS", "CLAIMS", "TXNS", "READS", "ENTRIES", "PUTS", "DELETES",
}

func stepCells(name string, l *bench.StepLoad) []string {
	cells := []string{
		name, fmt.Sprintf("%.0f", l.PerSecond), "", "", byWorker(l.ByWorker), latency(l.Take), latency(l.Complete),
		fmt.Sprint(l.SlotClaims), fmt.Sprintf("%.3f", l.Cost.Transactions), fmt.Sprintf("%.3f", l.Cost.Reads), fmt.Sprintf("%.3f", l.Cost.Entries), "", "",
	}
	if o := l.Cost.Operations; o != nil {
		cells[11], cells[12] = fmt.Sprintf("%.2f", o.Puts), fmt.Sprintf("%.2f", o.Deletes)
	}
	return cells
}

// byWorker writes what the slowest and the fastest worker did in a second.
func byWorker(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	ends := []string{fmt.Sprintf("%.0f", all[0]), fmt.Sprintf("%.0f", all[len(all)-1])}
	return strings.Join(slices.Compact(ends), "-")
}
