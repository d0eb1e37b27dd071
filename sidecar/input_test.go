package sidecar_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

func TestBadInputIsRefusedByField(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 5)
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf(`"p%d":1`, i)
	}
	labels := make([]string, 33)
	for i := range labels {
		labels[i] = fmt.Sprintf(`"l%d":"x"`, i)
	}
	long := strings.Repeat("x", 600)
	claim := func(body string) request { return request{method: "POST", path: "/v1/claims", body: body} }
	renew := func(body string) request { return request{method: "POST", path: "/v1/claims/mine/renew", body: body} }
	patch := func(body string) request { return request{method: "PATCH", path: "/v1/pools/db", body: body} }
	get := func(path string) request { return request{method: "GET", path: path} }
	for what, test := range map[string]struct {
		request
		code   problem.Code
		fields string
	}{
		"an unknown pool":             {claim(`{"pools":{"nothing":1}}`), problem.PoolNotFound, ""},
		"above the limit":             {claim(`{"pools":{"db":6}}`), problem.ExceedsLimit, "pools.db"},
		"no slots":                    {claim(`{"pools":{"db":0}}`), problem.Invalid, "pools.db"},
		"less than none":              {claim(`{"pools":{"db":-1}}`), problem.Invalid, "pools.db"},
		"null slots":                  {claim(`{"pools":{"db":null}}`), problem.Invalid, "pools.db"},
		"half a slot":                 {claim(`{"pools":{"db":1.5}}`), problem.Invalid, "pools.db"},
		"slots in words":              {claim(`{"pools":{"db":"one"}}`), problem.Invalid, "pools.db"},
		"slots beyond numbers":        {claim(`{"pools":{"db":99999999999999999999}}`), problem.Invalid, "pools.db"},
		"a million and one":           {claim(`{"pools":{"db":1000001}}`), problem.Invalid, "pools.db"},
		"a list of pools":             {claim(`{"pools":["db"]}`), problem.Invalid, "pools"},
		"a pool in words":             {claim(`{"pools":"db"}`), problem.Invalid, "pools"},
		"no pools":                    {claim(`{}`), problem.Invalid, "pools"},
		"null pools":                  {claim(`{"pools":null}`), problem.Invalid, "pools"},
		"an empty set of pools":       {claim(`{"pools":{}}`), problem.Invalid, "pools"},
		"200 pools":                   {claim(`{"pools":{` + strings.Join(many, ",") + `}}`), problem.Invalid, "pools"},
		"a pool given twice":          {claim(`{"pools":{"db":1,"db":2}}`), problem.Invalid, "pools.db"},
		"given twice in disguise":     {claim(`{"pools":{"db":1,"d\u0062":2}}`), problem.Invalid, "pools.db"},
		"a field given twice":         {claim(`{"pools":{"db":1},"id":"a","id":"b"}`), problem.Invalid, "id"},
		"a bad pool name":             {claim(`{"pools":{"DB":1}}`), problem.Invalid, "pool"},
		"a long pool name":            {claim(`{"pools":{"` + long + `":1}}`), problem.Invalid, "pool"},
		"an id with a slash":          {claim(`{"id":"a/b","pools":{"db":1}}`), problem.Invalid, "id"},
		"a long id":                   {claim(`{"id":"` + long + `","pools":{"db":1}}`), problem.Invalid, "id"},
		"an unknown field":            {claim(`{"pools":{"db":1},"slots":2}`), problem.Invalid, "slots"},
		"two unknown fields":          {claim(`{"pools":{"db":1},"slots":2,"x":{}}`), problem.Invalid, "slots"},
		"a field in capitals":         {claim(`{"Pools":{"db":1}}`), problem.Invalid, "Pools"},
		"a field in another dress":    {claim(`{"pools":{"db":1},"pid\u017f":1}`), problem.Invalid, "pidſ"},
		"a priority out of range":     {claim(`{"pools":{"db":1},"priority":1001}`), problem.Invalid, "priority"},
		"a long run id":               {claim(`{"pools":{"db":1},"run_id":"` + long + `"}`), problem.Invalid, "run_id"},
		"a long label":                {claim(`{"pools":{"db":1},"labels":{"ci":"` + long + `"}}`), problem.Invalid, "labels.ci"},
		"a label with a long name":    {claim(`{"pools":{"db":1},"labels":{"` + long + `":"ci"}}`), problem.Invalid, "labels"},
		"a long step key":             {claim(`{"pools":{"db":1},"step_key":"` + long + `"}`), problem.Invalid, "step_key"},
		"an escape in a run id":       {claim(`{"pools":{"db":1},"run_id":"a\u001b[2Jb"}`), problem.Invalid, "run_id"},
		"a step key of two lines":     {claim(`{"pools":{"db":1},"step_key":"a\nb"}`), problem.Invalid, "step_key"},
		"a label from right to left":  {claim(`{"pools":{"db":1},"labels":{"team":"\u202eb"}}`), problem.Invalid, "labels.team"},
		"33 labels":                   {claim(`{"pools":{"db":1},"labels":{` + strings.Join(labels, ",") + `}}`), problem.Invalid, "labels"},
		"a label that is a number":    {claim(`{"pools":{"db":1},"labels":{"a":1}}`), problem.Invalid, "labels.a"},
		"a label without a name":      {claim(`{"pools":{"db":1},"labels":{"":"x"}}`), problem.Invalid, "labels"},
		"a wait below zero":           {claim(`{"pools":{"db":1},"wait":"-1s"}`), problem.Invalid, "wait"},
		"a wait of never":             {claim(`{"pools":{"db":1},"wait":"-1"}`), problem.Invalid, "wait"},
		"a wait of a year and more":   {claim(`{"pools":{"db":1},"wait":"8760h1ns"}`), problem.Invalid, "wait"},
		"a wait beyond time":          {claim(`{"pools":{"db":1},"wait":"99999999999h"}`), problem.Invalid, "wait"},
		"a wait in words":             {claim(`{"pools":{"db":1},"wait":"soon"}`), problem.Invalid, "wait"},
		"a wait that is a number":     {claim(`{"pools":{"db":1},"wait":30}`), problem.Invalid, "wait"},
		"a ttl below zero":            {claim(`{"pools":{"db":1},"ttl":"-5s"}`), problem.Invalid, "ttl"},
		"a ttl too short":             {claim(`{"pools":{"db":1},"ttl":"10ms"}`), problem.Invalid, "ttl"},
		"a ttl too long":              {claim(`{"pools":{"db":1},"ttl":"25h"}`), problem.Invalid, "ttl"},
		"a pid over TCP":              {claim(`{"pools":{"db":1},"pid":1}`), problem.Invalid, "pid"},
		"a pid below zero":            {claim(`{"pools":{"db":1},"pid":-1}`), problem.Invalid, "pid"},
		"a pid of nobody":             {claim(`{"pools":{"db":1},"pid":0}`), problem.Invalid, "pid"},
		"a pid of minus nobody":       {claim(`{"pools":{"db":1},"pid":-0}`), problem.Invalid, "pid"},
		"a garbled run id":            {claim("{\"pools\":{\"db\":1},\"wait\":\"0s\",\"run_id\":\"a\xffb\"}"), problem.Malformed, "run_id"},
		"half a pair in a step key":   {claim(`{"pools":{"db":1},"wait":"0s","step_key":"\ud83d"}`), problem.Malformed, "step_key"},
		"halves of two pairs":         {claim(`{"pools":{"db":1},"wait":"0s","client_token":"\ud83d\u0041\ude00"}`), problem.Malformed, "client_token"},
		"a garbled label":             {claim("{\"pools\":{\"db\":1},\"wait\":\"0s\",\"labels\":{\"team\":\"\xc3\"}}"), problem.Malformed, "labels.team"},
		"a garbled label's name":      {claim("{\"pools\":{\"db\":1},\"wait\":\"0s\",\"labels\":{\"\xc3\":\"x\"}}"), problem.Malformed, "labels"},
		"a garbled field":             {claim("{\"pools\":{\"db\":1},\"wait\":\"0s\",\"x\xff\":1}"), problem.Malformed, ""},
		"to kill nobody":              {claim(`{"pools":{"db":1},"only_kill":true}`), problem.Invalid, "only_kill"},
		"to kill in words":            {claim(`{"pools":{"db":1},"only_kill":"yes"}`), problem.Invalid, "only_kill"},
		"a long client_token":         {claim(`{"pools":{"db":1},"client_token":"` + long + `"}`), problem.Invalid, "client_token"},
		"a client_token as a number":  {claim(`{"pools":{"db":1},"client_token":1}`), problem.Invalid, "client_token"},
		"no JSON":                     {claim(`pools: db`), problem.Malformed, ""},
		"half of JSON":                {claim(`{"pools":{"db":1}`), problem.Malformed, ""},
		"more than JSON":              {claim(`{"pools":{"db":1}} {}`), problem.Malformed, ""},
		"a list":                      {claim(`[]`), problem.Malformed, ""},
		"a number":                    {claim(`1`), problem.Malformed, ""},
		"nothing":                     {claim(``), problem.Malformed, ""},
		"blanks":                      {claim(" \n"), problem.Malformed, ""},
		"deep down":                   {claim(strings.Repeat("[", 30000) + strings.Repeat("]", 30000)), problem.TooLarge, ""},
		"renew: a bad ttl":            {renew(`{"ttl":"1ms"}`), problem.Invalid, "ttl"},
		"renew: an unknown field":     {renew(`{"wait":"1s"}`), problem.Invalid, "wait"},
		"renew: a pid over TCP":       {renew(`{"pid":1}`), problem.Invalid, "pid"},
		"renew: to kill nobody":       {renew(`{"only_kill":true}`), problem.Invalid, "only_kill"},
		"renew: a fence below zero":   {renew(`{"fence":-1}`), problem.Invalid, "fence"},
		"renew: a fence of none":      {renew(`{"fence":0}`), problem.Invalid, "fence"},
		"renew: a pid of nobody":      {renew(`{"pid": 0 }`), problem.Invalid, "pid"},
		"renew: a fence in words":     {renew(`{"fence":"new"}`), problem.Invalid, "fence"},
		"renew: another's fence":      {renew(`{"fence":1}`), problem.ClaimLost, ""},
		"renew: of nobody":            {request{method: "POST", path: "/v1/claims/nobody/renew"}, problem.ClaimNotFound, ""},
		"renew: a bad id":             {request{method: "POST", path: "/v1/claims/%20/renew"}, problem.Invalid, "id"},
		"release: a bad id":           {request{method: "DELETE", path: "/v1/claims/" + long}, problem.Invalid, "id"},
		"get: nobody":                 {get("/v1/claims/nobody"), problem.ClaimNotFound, ""},
		"why: nobody":                 {get("/v1/claims/nobody/why"), problem.ClaimNotFound, ""},
		"get: a bad id":               {get("/v1/claims/%20"), problem.Invalid, "id"},
		"list: a bad limit":           {get("/v1/claims?limit=0"), problem.Invalid, "limit"},
		"list: a limit in words":      {get("/v1/claims?limit=all"), problem.Invalid, "limit"},
		"list: a bad cursor":          {get("/v1/claims?cursor=%21"), problem.Invalid, "cursor"},
		"list: a bad status":          {get("/v1/claims?status=lost"), problem.Invalid, "status"},
		"list: an unknown parameter":  {get("/v1/claims?pools=db"), problem.Invalid, "pools"},
		"events: a bad claim":         {get("/v1/events?claim=%20"), problem.Invalid, "id"},
		"events: a bad pool":          {get("/v1/events?pool=DB"), problem.Invalid, "pool"},
		"pool: not there":             {get("/v1/pools/nothing"), problem.PoolNotFound, ""},
		"pool: a bad name":            {get("/v1/pools/NO"), problem.Invalid, "pool"},
		"put: a bad name":             {request{method: "PUT", path: "/v1/pools/a%20b", body: `{"limit":1}`}, problem.Invalid, "pool"},
		"put: no limit":               {request{method: "PUT", path: "/v1/pools/new", body: `{}`}, problem.Invalid, "limit"},
		"put: no limit of an old one": {request{method: "PUT", path: "/v1/pools/db", body: `{"paused":true}`}, problem.Invalid, "limit"},
		"patch: not there":            {request{method: "PATCH", path: "/v1/pools/nothing", body: `{"limit":1}`}, problem.PoolNotFound, ""},
		"patch: not an ETag":          {under(patch(`{"limit":1}`), "If-Match", "42"), problem.Invalid, "If-Match"},
		"put: none of an ETag":        {under(request{method: "PUT", path: "/v1/pools/db", body: `{"limit":1}`}, "If-None-Match", `"42"`), problem.Invalid, "If-None-Match"},
		"patch: a limit too low":      {patch(`{"limit":-2}`), problem.Invalid, "limit"},
		"patch: a limit too high":     {patch(`{"limit":1000001}`), problem.Invalid, "limit"},
		"patch: a limit in words":     {patch(`{"limit":"five"}`), problem.Invalid, "limit"},
		"patch: a short lease":        {patch(`{"lease_duration":"1s"}`), problem.Invalid, "lease_duration"},
		"patch: a long lease":         {patch(`{"lease_duration":"48h"}`), problem.Invalid, "lease_duration"},
		"patch: half a second":        {patch(`{"lease_duration":"5500ms"}`), problem.Invalid, "lease_duration"},
		"patch: a lease of never":     {patch(`{"lease_duration":"-1"}`), problem.Invalid, "lease_duration"},
		"patch: to reserve before":    {patch(`{"reserve_after":"-2s"}`), problem.Invalid, "reserve_after"},
		"patch: an unknown field":     {patch(`{"size":1}`), problem.Invalid, "size"},
		"patch: paused in words":      {patch(`{"paused":"yes"}`), problem.Invalid, "paused"},
		"delete: not there":           {request{method: "DELETE", path: "/v1/pools/nothing"}, problem.PoolNotFound, ""},
		"pause: not there":            {request{method: "POST", path: "/v1/pools/nothing/pause"}, problem.PoolNotFound, ""},
		"release: a fence of none":    {request{method: "DELETE", path: "/v1/claims/mine?fence=0"}, problem.Invalid, "fence"},
		"release: a fence in words":   {request{method: "DELETE", path: "/v1/claims/mine?fence=new"}, problem.Invalid, "fence"},
		"revoke: nobody":              {request{method: "POST", path: "/v1/claims/nobody/revoke"}, problem.ClaimNotFound, ""},
		"revoke: an unknown field":    {request{method: "POST", path: "/v1/claims/mine/revoke", body: `{"now":true}`}, problem.Invalid, "now"},
	} {
		t.Run(what, func(t *testing.T) {
			got := r.raw(test.request)
			p := got.problem(t)
			if p.Code != string(test.code) || p.Status != test.code.Status() {
				t.Errorf("%s", got.body)
			}
			var fields []string
			for _, f := range p.Errors {
				fields = append(fields, f.Field)
				if f.Message == "" {
					t.Errorf("no message: %s", got.body)
				}
			}
			if !slices.Equal(fields, strings.Fields(test.fields)) {
				t.Errorf("fields %q: %s", fields, got.body)
			}
		})
	}
	if n := r.claimed("db"); n != 1 {
		t.Errorf("%d slots were taken by what was refused", n-1)
	}
}

func TestAPoolIsSetChangedPausedAndDeleted(t *testing.T) {
	r := single(t)
	r.readDocument()
	var p api.Pool
	got := r.raw(request{method: "PUT", path: "/v1/pools/db", body: `{"limit":4}`})
	decode(t, got, &p)
	want := api.Pool{
		Name: "db", Status: "open", Limit: 4, LeaseDuration: api.Duration(5 * time.Minute), ReserveAfter: api.Duration(time.Minute),
		Survives: api.Duration(200*time.Second - 10*time.Second - 6*time.Second),
	}
	if got.status != http.StatusCreated || p != want {
		t.Errorf("%d %+v", got.status, p)
	}
	got = r.raw(request{method: "PATCH", path: "/v1/pools/db", body: `{"lease_duration":"30s","reserve_after":"-1"}`})
	decode(t, got, &p)
	want.LeaseDuration, want.ReserveAfter = api.Duration(30*time.Second), -1
	want.Survives = api.Duration(14 * time.Second) // 14.4 s, rounded
	if got.status != http.StatusOK || p != want {
		t.Errorf("%d %+v", got.status, p)
	}
	got = r.raw(request{method: "PUT", path: "/v1/pools/db", body: `{"limit":2,"paused":true}`})
	decode(t, got, &p)
	want.Limit, want.Paused, want.Status = 2, true, "paused"
	want.LeaseDuration, want.ReserveAfter = api.Duration(5*time.Minute), api.Duration(time.Minute)
	want.Survives = api.Duration(200*time.Second - 10*time.Second - 6*time.Second)
	if got.status != http.StatusOK || p != want {
		t.Errorf("replaced: %d %+v", got.status, p)
	}
	for path, paused := range map[string]bool{"pause": true, "resume": false} {
		decode(t, r.raw(request{method: "POST", path: "/v1/pools/db/" + path}), &p)
		if p.Paused != paused {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if got, err := r.client.PausePool(t.Context(), "db"); err != nil || !got.Paused {
		t.Errorf("%+v, %v", got, err)
	}
	_, err := r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, Wait: noWait})
	wantCode(t, err, problem.NoCapacity)
	if got, err := r.client.ResumePool(t.Context(), "db"); err != nil || got.Paused {
		t.Errorf("%+v, %v", got, err)
	}
	r.claim(api.ClaimRequest{ID: "last", Pools: api.Slots{"db": 1}})
	if got := r.raw(request{method: "DELETE", path: "/v1/pools/db"}); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
	pools, err := r.client.Pools(t.Context())
	if err != nil || len(pools) != 1 || !pools[0].Deleted {
		t.Errorf("deleted while it is held: %+v, %v", pools, err)
	}
	if err := r.client.Release(t.Context(), "last"); err != nil {
		t.Error(err)
	}
	eventually(t, "it is gone", func() bool {
		pools, err := r.client.Pools(t.Context())
		return err == nil && len(pools) == 0
	})
	if err := r.client.DeletePool(t.Context(), "db"); problem.CodeOf(err) != problem.PoolNotFound {
		t.Error(err)
	}
}

// under adds a header to a request.
func under(q request, header, value string) request {
	q.change = func(r *http.Request) { r.Header.Set(header, value) }
	return q
}

func TestAPoolIsChangedOnlyInTheStateThatARequestNames(t *testing.T) {
	r := single(t)
	r.readDocument()
	const path = "/v1/pools/db"
	put := request{method: "PUT", path: path, body: `{"limit":1}`}
	r.wantUnmet(under(put, "If-Match", "*"), `there is no ETag of pool 'db': to create it, send the request without If-Match`)
	got := r.raw(under(put, "If-None-Match", "*"))
	if got.status != http.StatusCreated {
		t.Fatalf("%d %s", got.status, got.body)
	}
	first := got.header.Get("ETag")
	r.wantUnmet(under(put, "If-None-Match", "*"), "the ETag of pool 'db' is "+first+", and If-None-Match: * only creates: to replace it, send the request with that ETag in If-Match")
	for _, q := range []request{
		{method: "PUT", path: path, body: `{"limit":2}`}, {method: "PATCH", path: path, body: `{"limit":3}`},
		{method: "POST", path: path + "/pause"}, {method: "POST", path: path + "/resume"}, {method: "DELETE", path: path},
	} {
		old := r.raw(request{method: "GET", path: path}).header.Get("ETag")
		var changed answer
		if q.method != "DELETE" {
			changed = r.raw(under(q, "If-Match", `"1", `+old))
			if tag := changed.header.Get("ETag"); changed.status != http.StatusOK || tag == old || tag == "" || tag != r.raw(request{method: "GET", path: path}).header.Get("ETag") {
				t.Errorf("%s %s: %d %s, ETag %s after %s", q.method, q.path, changed.status, changed.body, tag, old)
			}
			old, first = changed.header.Get("ETag"), old
		}
		r.wantUnmet(under(q, "If-Match", first), "the ETag of pool 'db' is "+old+", not "+first+": read the state again, decide, and send the request with that ETag in If-Match")
		r.wantUnmet(under(q, "If-Match", "W/"+old), "the ETag of pool 'db' is "+old)
	}
	p, err := r.client.Pool(t.Context(), "db")
	if err != nil {
		t.Fatal(err)
	}
	if same, err := r.client.ChangePool(t.Context(), "db", api.PoolChange{Limit: new(3)}, client.IfMatch(p.Revision)); err != nil || same.Revision != p.Revision {
		t.Errorf("nothing changed: %+v, %v", same, err)
	}
	_, err = r.client.SetPool(t.Context(), "db", api.PoolChange{Limit: new(3)}, client.IfAbsent())
	wantCode(t, err, problem.Precondition)
	r.claim(api.ClaimRequest{ID: "last", Pools: api.Slots{"db": 1}})
	if err := r.client.DeletePool(t.Context(), "db", client.IfMatch(p.Revision)); err != nil {
		t.Error(err)
	}
	if tag, ok := r.raw(request{method: "GET", path: path}).header["Etag"]; ok {
		t.Errorf("a deleted pool has the ETag %q", tag)
	}
	if got := r.raw(under(request{method: "POST", path: path + "/pause"}, "If-Match", first)); got.problem(t).Code != string(problem.PoolNotFound) {
		t.Errorf("%s", got.body)
	}
}

// wantUnmet requires that a request is refused because the state is another.
func (r *running) wantUnmet(q request, detail string) {
	r.t.Helper()
	got := r.raw(q)
	if p := got.problem(r.t); got.status != http.StatusPreconditionFailed || p.Code != string(problem.Precondition) || !strings.Contains(p.Detail, detail) {
		r.t.Errorf("%s %s: %d %s, want %s", q.method, q.path, got.status, got.body, detail)
	}
}

func TestTheMetricsOfTheServerAreCounted(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "a", Pools: api.Slots{"db": 1}})
	r.raw(request{method: "GET", path: "/v1/claims/a"})
	r.raw(request{method: "GET", path: "/v1/claims/b"})
	r.raw(request{method: "BREW", path: "/coffee"})
	got := string(r.raw(request{method: "GET", path: "/metrics"}).body)
	for _, want := range []string{
		`berth_http_requests_total{code="201",method="POST",route="/v1/claims"} 1`,
		`berth_http_requests_total{code="200",method="GET",route="/v1/claims/{id}"} 1`,
		`berth_http_requests_total{code="404",method="GET",route="/v1/claims/{id}"} 1`,
		`berth_http_requests_total{code="404",method="none",route="none"} 1`,
		`berth_http_request_duration_seconds_count{route="/v1/claims"} 1`,
		`berth_http_waits_in_flight 0`,
		`berth_claims_held{pool="db"} 1`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("not there: %s in\n%s", want, got)
		}
	}
}
