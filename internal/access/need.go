package access

import "context"

// On is what the role of a [Need] must be for.
type On string

// What a role can be for.
const (
	// Anything: a grant with whatever pattern is enough.
	Anything On = ""
	// EveryThing: the grant must have no pattern, since the operation is not about one pool or
	// queue.
	EveryThing On = "all"
	// OnPools: the grant must match all pools that the request, or its object, names.
	OnPools On = "pools"
	// OnQueues: the grant must match all queues that the request, or its object, names.
	OnQueues On = "queues"
)

// Need is what an operation requires of its caller.
type Need struct {
	// Open operations need nothing: also anonymous callers may ask.
	Open bool
	// Role is what the caller must have, for what On says.
	Role Role
	On   On
	// Own: the owner of the claim, run or attempt needs no role.
	Own bool
}

// Check returns nil if the caller may have the need, as far as that is known before the object
// is: the role for anything at all. Owners are checked with the object.
func (n Need) Check(ctx context.Context) error {
	if n.Open || n.Own {
		return nil
	}
	if n.On == EveryThing {
		return Allow(ctx, n.Role, Everything)
	}
	return Allow(ctx, n.Role)
}

// Needs are what the operations of the HTTP API need, by their ids. An operation that is not in
// the table is refused to all but administrators.
var Needs = map[string]Need{
	"health":  {Open: true},
	"ready":   {Open: true},
	"openapi": {Open: true},
	"whoami":  {Open: true},
	"metrics": {Role: View},

	"list-claims":   {Role: View},
	"claim":         {Role: Claim, On: OnPools},
	"get-claim":     {Role: View, Own: true},
	"why-claim":     {Role: View, Own: true},
	"renew-claim":   {Role: Operate, On: OnPools, Own: true},
	"release-claim": {Role: Operate, On: OnPools, Own: true},
	"revoke-claim":  {Role: Operate, On: OnPools, Own: true},
	"events":        {Role: View, Own: true},

	"list-pools":  {Role: View},
	"get-pool":    {Role: View},
	"put-pool":    {Role: Operate, On: OnPools},
	"patch-pool":  {Role: Operate, On: OnPools},
	"delete-pool": {Role: Operate, On: OnPools},
	"pause-pool":  {Role: Operate, On: OnPools},
	"resume-pool": {Role: Operate, On: OnPools},

	"get-limits":   {Role: View},
	"put-limits":   {Role: Operate, On: EveryThing},
	"patch-limits": {Role: Operate, On: EveryThing},

	"list-runs":           {Role: View},
	"submit-run":          {Role: Submit, On: OnQueues},
	"get-run":             {Role: View, Own: true},
	"why-run":             {Role: View, Own: true},
	"list-run-events":     {Role: View, Own: true},
	"list-steps":          {Role: View, Own: true},
	"list-step-instances": {Role: View, Own: true},
	"get-step-instance":   {Role: View, Own: true},
	"get-step-log":        {Role: View, Own: true},
	"cancel-run":          {Role: Operate, On: EveryThing, Own: true},
	"retry-run":           {Role: Operate, On: EveryThing, Own: true},
	"cancel-step":         {Role: Operate, On: EveryThing, Own: true},
	"retry-step":          {Role: Operate, On: EveryThing, Own: true},

	"start-run":     {Role: Execute, On: EveryThing, Own: true},
	"heartbeat-run": {Role: Operate, On: EveryThing, Own: true},
	"finish-run":    {Role: Operate, On: EveryThing, Own: true},
	"list-ready":    {Role: Execute, On: OnQueues},
	"take-step":     {Role: Execute, On: OnQueues},
	"renew-step":    {Role: Operate, On: EveryThing, Own: true},
	"finish-step":   {Role: Operate, On: EveryThing, Own: true},

	"get-coordinator": {Role: View},
	"list-hosts":      {Role: View},
	"list-workers":    {Role: View},
	"drain-worker":    {Role: Operate, On: EveryThing},
	"stop-worker":     {Role: Operate, On: EveryThing},
	"resume-worker":   {Role: Operate, On: EveryThing},
	"list-actions":    {Role: View},
	"list-sources":    {Role: View},
	"get-source":      {Role: View},
	"wake-source":     {Role: Submit},
}

// NeedOf returns what an operation needs.
func NeedOf(operation string) Need {
	if n, ok := Needs[operation]; ok {
		return n
	}
	return Need{Role: Admin}
}
