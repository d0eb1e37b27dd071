package main

import (
	"context"
	"io"
	"os"
)

func main() { os.Exit(perform(context.Background(), os.Args, os.Stdout, os.Stderr)) }

// perform carries out a command line and returns the exit code.
func perform(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := newApp(stdout, stderr)
	if len(args) > 1 && args[1] == completeVerb {
		return printCandidates(stdout, app, args[2:])
	}
	return report(stderr, app.RunContext(ctx, arrange(app, args)))
}
