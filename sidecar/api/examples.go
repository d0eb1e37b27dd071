package api

import (
	"encoding/json"
	"fmt"

	"github.com/danielgtaylor/huma/v2"
)

// example is a request of an operation, and an answer to it, in JSON. Either can be left out.
type example struct{ request, status, answer string }

const (
	exampleHeld = `{"id": "load-42", "status": "held", "pools": {"db": 2}, "priority": 0, "host": "host-1", "instance": "sidecar",
		"run_id": "nightly", "labels": {"team": "data"}, "fence": 42, "claimed_at": "2026-01-02T03:04:05.678Z", "valid_for": "58.8s",
		"valid_until": "2026-01-02T03:05:04.478Z", "grace": "10s", "lease_duration": "1m0s", "ttl": "1m0s"}`
	examplePool = `{"name": "db", "status": "open", "limit": 3, "claimed": 2, "waiting": 1, "lease_duration": "1m0s",
		"reserve_after": "1m0s", "paused": false, "survives": "29s"}`
	exampleRun = `{"id": "nightly-1", "name": "nightly", "status": "queued", "tags": {"pipeline": "sales"}, "submitted_by": "token:airflow", "priority": 10, "steps": 3,
		"queued_at": "2026-01-02T03:04:05.678Z"}`
)

// examples are those of the document, by operation.
var examples = map[string]example{
	"claim": {
		`{"id": "load-42", "pools": {"db": 2}, "wait": "30s", "ttl": "1m", "run_id": "nightly", "labels": {"team": "data"}}`,
		"201", exampleHeld,
	},
	"list-claims":  {"", "200", `{"items": [` + exampleHeld + `]}`},
	"get-claim":    {"", "200", exampleHeld},
	"renew-claim":  {`{"ttl": "1m", "fence": 42}`, "200", exampleHeld},
	"revoke-claim": {`{"force": true}`, "200", `{"id": "load-42", "host": "host-1", "instance": "sidecar", "fence": 42, "forced": true, "detail": "the slots are free"}`},

	"list-pools": {"", "200", `{"items": [` + examplePool + `]}`},
	"get-pool": {"", "200", examplePool[:len(examplePool)-1] + `,
		"holders": [{"claim": "load-42", "host": "host-1", "instance": "sidecar", "run_id": "nightly", "slots": 2,
			"since": "2026-01-02T03:04:05.678Z", "expires_in": "59s", "fence": 42}],
		"waiters": [{"claim": "load-43", "host": "host-1", "instance": "sidecar", "slots": 2, "position": 1, "priority": 0,
			"since": "2026-01-02T03:04:06.789Z", "reason": "pool 'db' has too few free slots (2/3 slots, 2 wanted)"}]}`},
	"put-pool":   {`{"limit": 3, "lease_duration": "1m", "reserve_after": "1m"}`, "200", examplePool},
	"patch-pool": {request: `{"limit": 5}`},

	"submit-run": {
		`{"id": "nightly-1", "name": "nightly", "tags": {"pipeline": "sales"}, "priority": 10, "steps": [
			{"name": "load", "items": ["eu", "us"], "pools": {"db": 1}, "command": ["./load"], "retries": 2},
			{"name": "report", "needs": ["load"], "external": true}]}`,
		"201", exampleRun,
	},
	"list-runs":  {"", "200", `{"items": [` + exampleRun + `]}`},
	"get-run":    {"", "200", exampleRun},
	"cancel-run": {request: `{"reason": "wrong data"}`},
	"retry-run":  {request: `{"steps": ["load[1]"], "reason": "disk replaced"}`},
	"start-run":  {request: `{"executor": "host-1/4711", "ttl": "1m"}`},
	"finish-run": {request: `{"fence": 42, "status": "succeeded"}`},

	"list-steps": {"", "200", `{"items": [
		{"name": "load", "needs": [], "count": 2, "queue": "default", "pools": {"db": 1}, "retries": 2, "on_failure": "fail",
			"counts": {"requested": 0, "scheduled": 1, "running": 1, "succeeded": 0, "failed": 0, "canceled": 0}}]}`},
	"get-step-instance": {"", "200", `{"run_id": "nightly-1", "step": "load", "index": 0, "status": "requested", "queue": "default",
		"pools": {"db": 1}, "command": ["./load"], "input": "eu", "retries": 2}`},
	"take-step":   {request: `{"executor": "host-1/4711", "ttl": "1m", "wait": "30s"}`},
	"renew-step":  {request: `{"fence": 42}`},
	"finish-step": {request: `{"fence": 42, "status": "failed", "exit_code": 1, "error": "no such table", "output": "loading eu\n"}`},
	"retry-step":  {request: `{"reason": "disk replaced"}`},
}

// addExamples adds the examples to a document. Each must be of an operation that is in it.
func addExamples(doc *huma.OpenAPI) error {
	put := func(content map[string]*huma.MediaType, text string) error {
		if text == "" {
			return nil
		}
		return json.Unmarshal([]byte(text), &content["application/json"].Example)
	}
	added := 0
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if op == nil {
				continue
			}
			e, ok := examples[op.OperationID]
			if !ok {
				continue
			}
			added++
			var err error
			if e.request != "" {
				err = put(op.RequestBody.Content, e.request)
			}
			if err == nil && e.answer != "" {
				err = put(op.Responses[e.status].Content, e.answer)
			}
			if err != nil {
				return fmt.Errorf("the example of %s: %w", op.OperationID, err)
			}
		}
	}
	if added != len(examples) {
		return fmt.Errorf("there are %d examples, and %d operations for them", len(examples), added)
	}
	return nil
}
