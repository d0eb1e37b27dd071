//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// jobExecutor SIDECAR RUN STARTED END is an executor of a run: it starts it as soon
// as it is admitted, writes its pid to STARTED, and finishes it when there is a file
// END, as that says: "succeeded", or "failed" and why.
func jobExecutor(a []string) error {
	client, err := client.Dial(a[0], "")
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), jobDeadline)
	defer cancel()
	var r *api.StartedRun
	var failed error
	if err := waitUntil("the run was not admitted", func() bool {
		r, failed = client.StartRun(ctx, a[1], api.RunStart{Executor: "job"})
		return problem.CodeOf(failed) != problem.RunNotAdmitted
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	if err := writePID(a[2]); err != nil {
		return err
	}
	var end []byte
	if err := waitUntil("no "+a[3], func() bool { end, _ = os.ReadFile(a[3]); return len(end) > 0 }); err != nil {
		return err
	}
	status, why, _ := strings.Cut(strings.TrimSpace(string(end)), " ")
	_, err = client.FinishRun(ctx, a[1], api.RunFinish{Fence: r.Fence, Status: status, Error: why})
	return err
}

// jobGet URL prints what is there.
func jobGet(a []string) error {
	resp, err := http.Get(a[0])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", a[0], resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
