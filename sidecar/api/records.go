package api

import (
	"github.com/berthhq/berth/internal/inspect"
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
	Dispatcher       = inspect.Dispatcher
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
	Validity         = inspect.Validity
	Waiter           = inspect.Waiter
	Why              = inspect.Why
	Worker           = inspect.Worker
)

// States of a claim.
const (
	ClaimHeld      = inspect.ClaimHeld
	ClaimWaiting   = inspect.ClaimWaiting
	ClaimReleasing = inspect.ClaimReleasing
)

// DurationOf returns a pointer to a duration, for optional fields.
var DurationOf = inspect.DurationOf
