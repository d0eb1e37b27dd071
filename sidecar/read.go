package sidecar

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/pool"
)

// The records that the API answers with, by the names that importers of its client use.
type (
	Candidate        = inspect.Candidate
	Claim            = inspect.Claim
	Coordinator      = inspect.Coordinator
	Duration         = inspect.Duration
	Executor         = inspect.Executor
	Holder           = inspect.Holder
	HolderRef        = inspect.HolderRef
	Host             = inspect.Host
	List[T any]      = inspect.List[T]
	Pool             = inspect.Pool
	PoolDetail       = inspect.PoolDetail
	ReadyList        = inspect.ReadyList
	ReadyStep        = inspect.ReadyStep
	Reason           = inspect.Reason
	Revocation       = inspect.Revocation
	Run              = inspect.Run
	RunEvent         = inspect.RunEvent
	RunList          = inspect.RunList
	RunWhy           = inspect.RunWhy
	Shortage         = inspect.Shortage
	Slots            = inspect.Slots
	Step             = inspect.Step
	StepCounts       = inspect.StepCounts
	StepHold         = inspect.StepHold
	StepInstance     = inspect.StepInstance
	StepInstanceList = inspect.StepInstanceList
	StepList         = inspect.StepList
	StepWork         = inspect.StepWork
	Tick             = inspect.Tick
	Unreadable       = inspect.Unreadable
	Waiter           = inspect.Waiter
	Why              = inspect.Why
	Worker           = inspect.Worker
)

// States of a claim.
const (
	StateHeld      = inspect.ClaimHeld
	StateWaiting   = inspect.ClaimWaiting
	StateReleasing = inspect.ClaimReleasing
)

// DurationOf returns a pointer to a duration, for optional fields.
var DurationOf = inspect.DurationOf

// newSchemas returns the schemas of the OpenAPI document, with those of records that
// describe themselves as text or numbers.
func newSchemas() huma.Registry {
	r := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	r.RegisterTypeAlias(reflect.TypeFor[Duration](), reflect.TypeFor[durationSchema]())
	r.RegisterTypeAlias(reflect.TypeFor[Slots](), reflect.TypeFor[slotsSchema]())
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

// leaderMayBeNull says in the document that there may be no leader.
func leaderMayBeNull(doc *huma.OpenAPI) {
	s := doc.Components.Schemas.Map()["Coordinator"]
	leader := *s.Properties["leader"]
	s.Properties["leader"] = &huma.Schema{
		Description: leader.Description,
		OneOf:       []*huma.Schema{{Ref: leader.Ref}, {Type: "null"}},
	}
}
