package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/pool"
)

// tokenScheme names the bearer token in the document.
const tokenScheme = "token"

// schemaPrefix begins references to schemas of the document.
const schemaPrefix = "#/components/schemas/"

// Config returns a configuration of huma with an empty document. It is without what huma adds
// by itself: pages that load from other hosts, links to schemas, and errors of its own.
func Config(version string) huma.Config {
	if version == "" {
		version = "dev"
	}
	format := huma.Format{Marshal: encode, Unmarshal: json.Unmarshal}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "berth sidecar", Version: version,
				Description: "Claims slots of named pools, all or none, and gives them back. Queues runs, which are admitted under limits, and keeps watch over their executors.",
			},
			Components: &huma.Components{
				Schemas: newSchemas(),
				SecuritySchemes: map[string]*huma.SecurityScheme{tokenScheme: {
					Type: "http", Scheme: "bearer",
					Description: "The token of the server's settings. The unix socket needs none.",
				}},
			},
			Security: []map[string][]string{{tokenScheme: {}}},
		},
		Formats:                      map[string]huma.Format{jsonType: format, "json": format},
		DefaultFormat:                jsonType,
		Transformers:                 []huma.Transformer{transformError},
		RejectUnknownQueryParameters: true,
	}
}

// newSchemas returns the schemas of the OpenAPI document, with those of records that
// describe themselves as text or numbers.
func newSchemas() huma.Registry {
	r := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	r.RegisterTypeAlias(reflect.TypeFor[Duration](), reflect.TypeFor[durationSchema]())
	r.RegisterTypeAlias(reflect.TypeFor[Slots](), reflect.TypeFor[slotsSchema]())
	describeSteps(r)
	return r
}

type durationSchema struct{}

// Schema describes a duration.
func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type:     huma.TypeString,
		Pattern:  `^(-1|[0-9.]+(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*)$`,
		Examples: []any{"30s", "5m", "1h30m"},
	}
}

type slotsSchema struct{}

// Schema describes the slots of a claim.
func (slotsSchema) Schema(huma.Registry) *huma.Schema {
	least, most := 1.0, float64(pool.MaxLimit)
	pools := pool.MaxPools
	return &huma.Schema{
		Type:                 huma.TypeObject,
		Description:          "Slots by pool.",
		AdditionalProperties: &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: &least, Maximum: &most},
		MaxProperties:        &pools,
		Examples:             []any{map[string]int{"db": 2}},
	}
}

// leaderMayBeNull states in the document that there may be no leader.
func leaderMayBeNull(doc *huma.OpenAPI) {
	s := doc.Components.Schemas.Map()["Coordinator"]
	leader := *s.Properties["leader"]
	s.Properties["leader"] = &huma.Schema{
		Description: leader.Description,
		OneOf:       []*huma.Schema{{Ref: leader.Ref}, {Type: "null"}},
	}
}

// openAnswers has the document allow fields in answers that are not in it, so that a
// client that was generated from it goes on when one is added. What requests consist of
// stays closed: an unknown field of theirs is refused. A schema of both gets a closed
// copy for requests.
func openAnswers(doc *huma.OpenAPI) {
	schemas := doc.Components.Schemas.Map()
	requests, answers := map[string]bool{}, map[string]bool{}
	reach := func(content map[string]*huma.MediaType, into map[string]bool) {
		for _, kind := range content {
			visitSchemas(kind.Schema, func(s *huma.Schema) *huma.Schema {
				name, ok := strings.CutPrefix(s.Ref, schemaPrefix)
				if !ok || into[name] {
					return nil
				}
				into[name] = true
				return schemas[name]
			})
		}
	}
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if op == nil {
				continue
			}
			if op.RequestBody != nil {
				reach(op.RequestBody.Content, requests)
			}
			for _, response := range op.Responses {
				reach(response.Content, answers)
			}
		}
	}
	both := map[string]string{}
	for name := range requests {
		if answers[name] {
			closed := *schemas[name]
			both[schemaPrefix+name], schemas[name+"Request"] = schemaPrefix+name+"Request", &closed
		}
	}
	for name := range requests {
		visitSchemas(schemas[name], func(s *huma.Schema) *huma.Schema {
			if to, ok := both[s.Ref]; ok && !answers[name] {
				s.Ref = to
			}
			return nil
		})
	}
	for name := range answers {
		visitSchemas(schemas[name], func(s *huma.Schema) *huma.Schema {
			if s.AdditionalProperties == false {
				s.AdditionalProperties = nil
			}
			return nil
		})
	}
}

// visitSchemas calls visit for a schema and for those in it, and for what visit returns
// in the same way.
func visitSchemas(s *huma.Schema, visit func(*huma.Schema) *huma.Schema) {
	if s == nil {
		return
	}
	visitSchemas(visit(s), visit)
	visitSchemas(s.Items, visit)
	if of, ok := s.AdditionalProperties.(*huma.Schema); ok {
		visitSchemas(of, visit)
	}
	for _, p := range s.Properties {
		visitSchemas(p, visit)
	}
	for _, one := range slices.Concat(s.OneOf, s.AnyOf, s.AllOf) {
		visitSchemas(one, visit)
	}
}

// Finish completes a document after all operations are registered: it removes the types of
// errors that are never answered, allows unknown fields in answers, and adds the examples.
func Finish(doc *huma.OpenAPI) error {
	delete(doc.Components.Schemas.Map(), "ErrorModel")
	delete(doc.Components.Schemas.Map(), "ErrorDetail")
	leaderMayBeNull(doc)
	openAnswers(doc)
	return addExamples(doc)
}
