package sidecar_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

func TestPutReplacesTheLimitsAndPatchChangesThem(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	put := func(body string) answer { return d.raw(request{method: "PUT", path: "/v1/limits", body: body}) }
	patch := func(body string) answer {
		return d.raw(request{method: "PATCH", path: "/v1/limits", body: body})
	}
	var l api.Limits
	decode(t, d.get("/v1/limits"), &l)
	if l.MaxConcurrentRuns != run.DefaultMaxRuns || l.Tags == nil || len(l.Tags) != 0 {
		t.Errorf("at first: %+v", l)
	}
	tags := []api.TagLimit{
		{Key: "env", Limit: 5}, {Key: "env", Value: "prod", Limit: 2}, {Key: "tenant", PerUniqueValue: true, Limit: 1},
	}
	decode(t, put(`{"max_concurrent_runs":3,"tags":[{"key":"tenant","per_unique_value":true,"limit":1},{"key":"env","value":"prod","limit":2},{"key":"env","limit":5}]}`), &l)
	if l.MaxConcurrentRuns != 3 || !slices.Equal(l.Tags, tags) {
		t.Errorf("set: %+v", l)
	}
	for body, want := range map[string]int{`{}`: 3, `{"max_concurrent_runs":-1}`: -1, `{"max_concurrent_runs":0,"tags":null}`: 0} {
		if decode(t, patch(body), &l); l.MaxConcurrentRuns != want && body != `{}` || !slices.Equal(l.Tags, tags) {
			t.Errorf("%s: %+v", body, l)
		}
	}
	four := 4
	if l, err := d.client.ChangeLimits(t.Context(), api.LimitsChange{MaxConcurrentRuns: &four, Tags: []api.TagLimit{}}); err != nil || l.MaxConcurrentRuns != 4 || len(l.Tags) != 0 {
		t.Errorf("without tags: %+v, %v", l, err)
	}
	most := make([]string, run.MaxTagLimits)
	for i := range most {
		most[i] = fmt.Sprintf(`{"key":"%s","value":"%s%03d","limit":1}`, strings.Repeat("k", 128), strings.Repeat("v", 125), i)
	}
	if decode(t, patch(`{"tags":[`+strings.Join(most, ",")+`]}`), &l); len(l.Tags) != run.MaxTagLimits {
		t.Errorf("there are %d", len(l.Tags))
	}
	if l, err := d.client.Limits(t.Context()); err != nil || len(l.Tags) != run.MaxTagLimits || l.MaxConcurrentRuns != 4 {
		t.Errorf("%+v, %v", l, err)
	}
	read := d.get("/v1/limits").header.Get("ETag")
	replaced := d.raw(under(request{method: "PUT", path: "/v1/limits", body: `{"tags":[{"key":"a","limit":1}]}`}, "If-Match", read))
	decode(t, replaced, &l)
	if tag := replaced.header.Get("ETag"); l.MaxConcurrentRuns != run.DefaultMaxRuns || len(l.Tags) != 1 || tag == "" || tag == read {
		t.Errorf("replaced: %+v, ETag %s after %s", l, tag, read)
	}
	for _, method := range []string{"PUT", "PATCH"} {
		d.wantUnmet(under(request{method: method, path: "/v1/limits", body: `{"max_concurrent_runs":7}`}, "If-Match", read),
			"the ETag of the limits is "+replaced.header.Get("ETag")+", not "+read+": read the state again")
	}
	d.wantUnmet(under(request{method: "PUT", path: "/v1/limits", body: `{}`}, "If-None-Match", "*"), "If-None-Match: * only creates")
	if l, err := d.client.SetLimits(t.Context(), api.LimitsChange{}); err != nil || len(l.Tags) != 0 || l.MaxConcurrentRuns != run.DefaultMaxRuns {
		t.Errorf("all left out: %+v, %v", l, err)
	}
	d.put(d.store.Keys.Limits(), `?`)
	d.wantRefused(d.get("/v1/limits"), problem.CorruptValue)
}

func TestBadInputAboutRunsIsRefusedByField(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	fence := fmt.Sprint(d.started("mine", api.RunStart{Executor: "me"}).Fence)
	d.submit(api.RunRequest{ID: "queued"})
	tags := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`"%d":"x"`, i)
		}
		return `{"tags":{` + strings.Join(all, ",") + `}}`
	}
	long := strings.Repeat("x", 600)
	post := func(path, body string) request { return request{method: "POST", path: "/v1/runs" + path, body: body} }
	get := func(path string) request { return request{method: "GET", path: path} }
	put := func(body string) request { return request{method: "PUT", path: "/v1/limits", body: body} }
	for what, test := range map[string]struct {
		request
		code   problem.Code
		fields string
	}{
		"an unknown field":             {post("", `{"retry":1}`), problem.Invalid, "retry"},
		"an id with a slash":           {post("", `{"id":"a/b"}`), problem.Invalid, "id"},
		"a long id":                    {post("", `{"id":"`+long+`"}`), problem.Invalid, "id"},
		"a long label":                 {post("", `{"labels":{"ci":"`+long+`"}}`), problem.Invalid, "labels.ci"},
		"a long name":                  {post("", `{"name":"`+long+`"}`), problem.Invalid, "name"},
		"a name of two lines":          {post("", `{"name":"a\nb"}`), problem.Invalid, "name"},
		"a name that is a number":      {post("", `{"name":1}`), problem.Invalid, "name"},
		"a long owner":                 {post("", `{"owner":"`+long+`"}`), problem.Invalid, "owner"},
		"a priority too high":          {post("", `{"priority":1001}`), problem.Invalid, "priority"},
		"a priority too low":           {post("", `{"priority":-1001}`), problem.Invalid, "priority"},
		"half a priority":              {post("", `{"priority":0.5}`), problem.Invalid, "priority"},
		"retries below zero":           {post("", `{"retries":-1}`), problem.Invalid, "retries"},
		"101 retries":                  {post("", `{"retries":101}`), problem.Invalid, "retries"},
		"a time without a zone":        {post("", `{"not_before":"2026-11-22T15:00:00"}`), problem.Invalid, "not_before"},
		"a time that is a number":      {post("", `{"not_before":1795359600}`), problem.Invalid, "not_before"},
		"a delay of a year and more":   {post("", `{"delay":"8761h"}`), problem.Invalid, "delay"},
		"a delay below zero":           {post("", `{"delay":"-5s"}`), problem.Invalid, "delay"},
		"a delay and a time":           {post("", `{"delay":"5s","not_before":"2026-11-22T15:00:00Z"}`), problem.Invalid, "delay"},
		"33 tags":                      {post("", tags(33)), problem.Invalid, "tags"},
		"5,000 tags":                   {post("", tags(5000)), problem.Invalid, "tags"},
		"10,000 tags":                  {post("", tags(10000)), problem.TooLarge, ""},
		"a tag without a key":          {post("", `{"tags":{"":"x"}}`), problem.Invalid, "tags"},
		"a tag without a value":        {post("", `{"tags":{"a":""}}`), problem.Invalid, "tags.a"},
		"a tag with a = in its key":    {post("", `{"tags":{"a=b":"x"}}`), problem.Invalid, "tags.a=b"},
		"a tag of each value":          {post("", `{"tags":{"a":"*"}}`), problem.Invalid, "tags.a"},
		"a tag that is a number":       {post("", `{"tags":{"a":1}}`), problem.Invalid, "tags.a"},
		"a tag given twice":            {post("", `{"tags":{"a":"1","a":"2"}}`), problem.Invalid, "tags.a"},
		"a tag with a bell":            {post("", `{"tags":{"a":"\u0007"}}`), problem.Invalid, "tags.a"},
		"a list of tags":               {post("", `{"tags":["a=b"]}`), problem.Invalid, "tags"},
		"a label without a name":       {post("", `{"labels":{"":"x"}}`), problem.Invalid, "labels"},
		"no JSON":                      {post("", `name: x`), problem.Malformed, ""},
		"a list":                       {post("", `[]`), problem.Malformed, ""},
		"list: a bad status":           {get("/v1/runs?status=queued,walking"), problem.Invalid, "status"},
		"list: an empty status":        {get("/v1/runs?status=queued,,running"), problem.Invalid, "status"},
		"list: a tag without a value":  {get("/v1/runs?tag=env"), problem.Invalid, "tag"},
		"list: two values of a tag":    {get("/v1/runs?tag=a=1&tag=a=2"), problem.Invalid, "tag"},
		"list: a tag without a key":    {get("/v1/runs?tag==1"), problem.Invalid, "tag"},
		"list: a bad limit":            {get("/v1/runs?limit=0"), problem.Invalid, "limit"},
		"list: a limit too high":       {get("/v1/runs?limit=10001"), problem.Invalid, "limit"},
		"list: a bad cursor":           {get("/v1/runs?cursor=%21"), problem.Invalid, "cursor"},
		"list: a cursor of the queue":  {get("/v1/runs?cursor=eyJxIjp0cnVlLCJpIjoiYSJ9"), problem.Invalid, "cursor"},
		"list: a cursor by id":         {get("/v1/runs?status=queued&cursor=eyJpIjoiYSJ9"), problem.Invalid, "cursor"},
		"list: an unknown parameter":   {get("/v1/runs?state=queued"), problem.Invalid, "state"},
		"get: nobody":                  {get("/v1/runs/nobody"), problem.RunNotFound, ""},
		"get: a bad id":                {get("/v1/runs/%20"), problem.Invalid, "id"},
		"why: nobody":                  {get("/v1/runs/nobody/why"), problem.RunNotFound, ""},
		"why: a bad id":                {get("/v1/runs/%20/why"), problem.Invalid, "id"},
		"events: nobody":               {get("/v1/runs/nobody/events"), problem.RunNotFound, ""},
		"events: a bad id":             {get("/v1/runs/%20/events"), problem.Invalid, "id"},
		"cancel: nobody":               {post("/nobody/cancel", ``), problem.RunNotFound, ""},
		"cancel: a bad id":             {post("/%20/cancel", ``), problem.Invalid, "id"},
		"cancel: an unknown field":     {post("/queued/cancel", `{"force":true}`), problem.Invalid, "force"},
		"cancel: queued_only in words": {post("/queued/cancel", `{"queued_only":"yes"}`), problem.Invalid, "queued_only"},
		"cancel: not queued":           {post("/mine/cancel", `{"queued_only":true}`), problem.RunNotQueued, ""},
		"start: nobody":                {post("/nobody/start", ``), problem.RunNotFound, ""},
		"start: a bad id":              {post("/%20/start", ``), problem.Invalid, "id"},
		"start: not admitted":          {post("/queued/start", ``), problem.RunNotAdmitted, ""},
		"start: taken":                 {post("/mine/start", ``), problem.RunTaken, ""},
		"start: taken, by name":        {post("/mine/start", `{"executor":"you"}`), problem.RunTaken, ""},
		"start: a long executor":       {post("/queued/start", `{"executor":"`+long+`"}`), problem.Invalid, "executor"},
		"start: a ttl too short":       {post("/queued/start", `{"ttl":"4999ms"}`), problem.Invalid, "ttl"},
		"start: a ttl too long":        {post("/queued/start", `{"ttl":"24h1s"}`), problem.Invalid, "ttl"},
		"start: a ttl below zero":      {post("/queued/start", `{"ttl":"-5s"}`), problem.Invalid, "ttl"},
		"start: a ttl of never":        {post("/queued/start", `{"ttl":"-1"}`), problem.Invalid, "ttl"},
		"start: a ttl in words":        {post("/queued/start", `{"ttl":"soon"}`), problem.Invalid, "ttl"},
		"start: an unknown field":      {post("/queued/start", `{"pid":1}`), problem.Invalid, "pid"},
		"heartbeat: no body":           {post("/mine/heartbeat", ``), problem.Malformed, ""},
		"heartbeat: no fence":          {post("/mine/heartbeat", `{}`), problem.Invalid, "fence"},
		"heartbeat: a fence below":     {post("/mine/heartbeat", `{"fence":-1}`), problem.Invalid, "fence"},
		"heartbeat: a fence in words":  {post("/mine/heartbeat", `{"fence":"new"}`), problem.Invalid, "fence"},
		"heartbeat: another fence":     {post("/mine/heartbeat", `{"fence":1}`), problem.RunLost, ""},
		"heartbeat: not started":       {post("/queued/heartbeat", `{"fence":1}`), problem.RunLost, ""},
		"heartbeat: nobody":            {post("/nobody/heartbeat", `{"fence":1}`), problem.RunNotFound, ""},
		"heartbeat: a bad id":          {post("/%20/heartbeat", `{"fence":1}`), problem.Invalid, "id"},
		"heartbeat: an unknown field":  {post("/mine/heartbeat", `{"fence":1,"ttl":"1m"}`), problem.Invalid, "ttl"},
		"finish: no body":              {post("/mine/finish", ``), problem.Malformed, ""},
		"finish: no fence":             {post("/mine/finish", `{"status":"succeeded"}`), problem.Invalid, "fence"},
		"finish: no status":            {post("/mine/finish", `{"fence":`+fence+`}`), problem.Invalid, "status"},
		"finish: another status":       {post("/mine/finish", `{"fence":`+fence+`,"status":"canceled"}`), problem.Invalid, "status"},
		"finish: another fence":        {post("/mine/finish", `{"fence":1,"status":"failed"}`), problem.RunLost, ""},
		"finish: not started":          {post("/queued/finish", `{"fence":1,"status":"failed"}`), problem.RunLost, ""},
		"finish: nobody":               {post("/nobody/finish", `{"fence":1,"status":"failed"}`), problem.RunNotFound, ""},
		"finish: a bad id":             {post("/%20/finish", `{"fence":1,"status":"failed"}`), problem.Invalid, "id"},
		"finish: an unknown field":     {post("/mine/finish", `{"exit":1}`), problem.Invalid, "exit"},
		"limits: no body":              {put(``), problem.Malformed, ""},
		"limits: an unknown field":     {put(`{"max_runs":1}`), problem.Invalid, "max_runs"},
		"limits: too low":              {put(`{"max_concurrent_runs":-2}`), problem.Invalid, "max_concurrent_runs"},
		"limits: too high":             {put(`{"max_concurrent_runs":1000001}`), problem.Invalid, "max_concurrent_runs"},
		"limits: in words":             {put(`{"max_concurrent_runs":"ten"}`), problem.Invalid, "max_concurrent_runs"},
		"limits: an object of tags":    {put(`{"tags":{"env":1}}`), problem.Invalid, "tags"},
		"limits: a list of texts":      {put(`{"tags":["env=1"]}`), problem.Invalid, "tags[0]"},
		"limits: no such field":        {put(`{"tags":[{"key":"a","limit":1},{"key":"b","limit":1,"max":2}]}`), problem.Invalid, "tags[1].max"},
		"limits: a field in capitals":  {put(`{"tags":[{"key":"a","Limit":1,"limit":2}]}`), problem.Invalid, "tags[0].Limit"},
		"limits: a field given twice":  {put(`{"tags":[{"key":"a","limit":1,"limit":2}]}`), problem.Invalid, "tags[0].limit"},
		"limits: a tag without limit":  {put(`{"tags":[{"key":"a"}]}`), problem.Invalid, "tags[0].limit"},
		"limits: a limit too low":      {put(`{"tags":[{"key":"a","limit":-2}]}`), problem.Invalid, "tags[0].limit"},
		"limits: a limit in words":     {put(`{"tags":[{"key":"a","limit":"x"}]}`), problem.Invalid, "tags[0].limit"},
		"limits: no key":               {put(`{"tags":[{"limit":1}]}`), problem.Invalid, "tags[0].key"},
		"limits: an empty key":         {put(`{"tags":[{"key":"","limit":1}]}`), problem.Invalid, "tags[0]"},
		"limits: one value and each":   {put(`{"tags":[{"key":"a","value":"b","per_unique_value":true,"limit":1}]}`), problem.Invalid, "tags[0].per_unique_value"},
		"limits: twice":                {put(`{"tags":[{"key":"a","limit":1},{"key":"a","limit":2}]}`), problem.Invalid, "tags[1]"},
	} {
		t.Run(what, func(t *testing.T) {
			outer := d.t
			d.t = t
			defer func() { d.t = outer }()
			d.wantRefused(d.raw(test.request), test.code, strings.Fields(test.fields)...)
		})
	}
	if all, _, err := d.client.Runs(t.Context(), client.RunFilter{}); err != nil || len(all) != 2 || all[0].Status != "running" || all[1].Status != "queued" {
		t.Errorf("what was refused has left %+v, %v", all, err)
	}
}
