package sidecar_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/google/go-cmp/cmp"
)

// document is the OpenAPI document that a sidecar serves.
type document struct {
	router routers.Router
	// checked are the operations with their statuses that were seen.
	checked map[string]bool
}

// routes are those of the committed document, which [TestTheDocumentIsServed] compares with that
// of a sidecar.
var routes = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromFile("../docs/openapi.yaml")
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc)
})

// readDocument has a sidecar checked against the document from now on.
func (r *running) readDocument() {
	r.t.Helper()
	router, err := routes()
	if err != nil {
		r.t.Fatal(err)
	}
	r.doc = &document{router: router, checked: map[string]bool{}}
}

// check fails the test if an answer is not as the document says.
func (d *document) check(t testing.TB, req *http.Request, resp *http.Response, body []byte) {
	t.Helper()
	route, params, err := d.router.FindRoute(req)
	if err != nil {
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed && !strings.HasPrefix(req.URL.Path, "/openapi") && req.URL.Path != "/metrics" {
			t.Errorf("%s %s is not in the document: %v", req.Method, req.URL.Path, err)
		}
		return
	}
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header,
		Body:    io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s %s is answered with %d, %s, which is not as documented: %v", req.Method, req.URL.Path, resp.StatusCode, body, err)
	}
	d.checked[route.Operation.OperationID+" "+resp.Status] = true
}

func TestTheDocumentIsServed(t *testing.T) {
	r := single(t)
	committed, err := os.ReadFile("../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := r.raw(request{method: "GET", path: "/openapi.yaml"})
	if diff := cmp.Diff(string(committed), string(got.body)); diff != "" {
		t.Errorf("the document differs (-committed +served):\n%s", diff)
	}
	if kind := got.header.Get("Content-Type"); kind != "application/openapi+yaml;version=3.1" {
		t.Errorf("the YAML has the type %q", kind)
	}
	got = r.raw(request{method: "GET", path: "/openapi.json"})
	if kind := got.header.Get("Content-Type"); !json.Valid(got.body) || kind != "application/openapi+json;version=3.1" {
		t.Errorf("the JSON has the type %q and begins with %.40s", kind, got.body)
	}
}

func TestAnAnswerMayGetANewFieldAndARequestIsRefusedForAnUnknownOne(t *testing.T) {
	r := single(t)
	doc, err := openapi3.NewLoader().LoadFromData(r.raw(request{method: "GET", path: "/openapi.json"}).body)
	if err != nil {
		t.Fatal(err)
	}
	answers, requests := map[string]bool{}, map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.RequestBody != nil {
				for _, content := range op.RequestBody.Value.Content {
					objects(content.Schema, "the body of "+method+" "+path, requests)
				}
			}
			for status, response := range op.Responses.Map() {
				for _, content := range response.Value.Content {
					objects(content.Schema, method+" "+path+" "+status, answers)
				}
			}
		}
	}
	for what, closed := range answers {
		if closed {
			t.Errorf("%s: no field can be added to it", what)
		}
	}
	for what, closed := range requests {
		if !closed {
			t.Errorf("%s: an unknown field is not refused", what)
		}
	}
	if len(answers) < 100 || len(requests) < 10 {
		t.Errorf("only %d objects in answers and %d in requests were checked", len(answers), len(requests))
	}
}

// objects finds the objects with names of their own in a schema, by where they are,
// and whether they are closed to others.
func objects(s *openapi3.SchemaRef, at string, into map[string]bool) {
	if s == nil || s.Value == nil {
		return
	}
	if s.Ref != "" {
		at += " " + s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	}
	v := s.Value
	if _, seen := into[at]; seen {
		return
	}
	if v.Type.Is("object") && len(v.Properties) > 0 {
		into[at] = v.AdditionalProperties.Has != nil && !*v.AdditionalProperties.Has
	}
	for name, p := range v.Properties {
		objects(p, at+"."+name, into)
	}
	objects(v.Items, at+"[]", into)
	objects(v.AdditionalProperties.Schema, at+".*", into)
	for _, one := range append(append(v.OneOf, v.AnyOf...), v.AllOf...) {
		objects(one, at, into)
	}
}
