// Package problem is the one table of what can go wrong for a user of berth:
// each code with its HTTP status and its exit code. Every layer returns
// [*Error]; HTTP and the CLI look up the status and the exit code in the table.
package problem

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/berthhq/berth/internal/text"
)

// Code names a problem. Codes are stable: programs branch on them.
type Code string

// The codes.
const (
	// Invalid: a field of the input is malformed or out of range.
	Invalid Code = "invalid"
	// ExceedsLimit: a claim asks for more slots than its pool has.
	ExceedsLimit Code = "exceeds_limit"
	// PoolNotFound: no pool has that name.
	PoolNotFound Code = "pool_not_found"
	// ClaimNotFound: no claim has that id.
	ClaimNotFound Code = "claim_not_found"
	// NoCapacity: the claim does not fit now and was not to wait.
	NoCapacity Code = "no_capacity"
	// ClaimTimeout: the claim did not fit within the time it was to wait.
	ClaimTimeout Code = "claim_timeout"
	// ClaimCanceled: the client went away while the claim waited.
	ClaimCanceled Code = "claim_canceled"
	// ClaimLost: the validity of the claim ended before its release.
	ClaimLost Code = "claim_lost"
	// ClaimRevoked: an operator revoked the claim.
	ClaimRevoked Code = "claim_revoked"
	// IDInUse: another claim has the id.
	IDInUse Code = "id_in_use"
	// Precondition: the state that the request depends on has changed.
	Precondition Code = "precondition_failed"
	// NotHolder: the claim belongs to another host or process.
	NotHolder Code = "not_holder"
	// RunNotFound: no run has that id.
	RunNotFound Code = "run_not_found"
	// RunNotQueued: the run has left the queue already.
	RunNotQueued Code = "run_not_queued"
	// RunNotAdmitted: the run waits in the queue still.
	RunNotAdmitted Code = "run_not_admitted"
	// RunTaken: another executor has the run.
	RunTaken Code = "run_taken"
	// RunLost: the executor was taken to be dead, or the attempt is an older one.
	RunLost Code = "run_lost"
	// RunEnded: the run has ended already, in another way.
	RunEnded Code = "run_ended"
	// RunNotEnded: the run is queued or in progress still.
	RunNotEnded Code = "run_not_ended"
	// StepNotFound: no run has such a step instance.
	StepNotFound Code = "step_not_found"
	// StepTaken: the step instance can't be taken: another executor has it, or it is not
	// ready.
	StepTaken Code = "step_taken"
	// StepEnded: the step instance has ended already, in another way.
	StepEnded Code = "step_ended"
	// StepLost: the executor was taken to be dead, or the attempt is an older one.
	StepLost Code = "step_lost"
	// HostInUse: another live instance has this host's name.
	HostInUse Code = "host_in_use"
	// CorruptValue: a value in etcd can't be read.
	CorruptValue Code = "corrupt_value"
	// EtcdUnavailable: etcd did not answer in time.
	EtcdUnavailable Code = "etcd_unavailable"
	// EtcdDenied: etcd refused the user, a certificate, or the rights on the prefix, or its own
	// certificate is not accepted.
	EtcdDenied Code = "etcd_denied"
	// EtcdFull: etcd accepts only deletes until it has space again.
	EtcdFull Code = "etcd_full"
	// StateUnwritable: the state directory takes no files, as on a full disk.
	StateUnwritable Code = "state_unwritable"
	// Stopping: this process is shutting down.
	Stopping Code = "stopping"
	// Unauthorized: the caller has not shown who it is, or with a token that is not valid.
	Unauthorized Code = "unauthorized"
	// Forbidden: the request came in a way that is not allowed.
	Forbidden Code = "forbidden"
	// TooLarge: the body of a request is too long.
	TooLarge Code = "too_large"
	// SlowRequest: the body of a request did not arrive in time.
	SlowRequest Code = "slow_request"
	// TooManyRequests: a bound of what is served at the same time, or within a time, is reached.
	TooManyRequests Code = "too_many_requests"
	// TooMany: an identity has stored as much in etcd as a setting allows.
	TooMany Code = "too_many"
	// Malformed: a request can't be read at all, as with JSON that is none.
	Malformed Code = "malformed"
	// MediaType: the media type of a request body is not supported.
	MediaType Code = "unsupported_media_type"
	// NotFound: there is nothing at that address.
	NotFound Code = "not_found"
	// NotAllowed: the address does not support the method.
	NotAllowed Code = "method_not_allowed"
	// Unavailable: the sidecar can't be reached or is not ready.
	Unavailable Code = "unavailable"
	// Internal: a fault of berth itself.
	Internal Code = "internal"
)

// Exit codes of the CLI. 0 is success; exec passes on its child's.
const (
	ExitFailure = 1  // anything without a code of its own
	ExitUsage   = 2  // the command line can't be understood
	ExitTimeout = 75 // waited in vain (EX_TEMPFAIL of sysexits.h)
	ExitLost    = 76 // held, and lost before the end
	ExitRefused = 77 // can't be granted as asked (EX_NOPERM of sysexits.h)
)

// entry is a row of the table.
type entry struct {
	status int
	exit   int
	title  string
}

// table is the only place that ties a code to a status and an exit code.
var table = map[Code]entry{
	Invalid:         {422, ExitRefused, "Invalid input"},
	ExceedsLimit:    {422, ExitRefused, "More slots than the limit of the pool"},
	PoolNotFound:    {404, ExitFailure, "No such pool"},
	ClaimNotFound:   {404, ExitFailure, "No such claim"},
	NoCapacity:      {409, ExitTimeout, "No free slots"},
	ClaimTimeout:    {409, ExitTimeout, "Timed out waiting for slots"},
	ClaimCanceled:   {499, ExitFailure, "The claim was canceled"},
	ClaimLost:       {409, ExitLost, "The claim is lost"},
	ClaimRevoked:    {409, ExitLost, "The claim was revoked"},
	IDInUse:         {409, ExitRefused, "The id is in use"},
	Precondition:    {412, ExitRefused, "The state has changed"},
	NotHolder:       {403, ExitRefused, "The claim belongs to another holder"},
	RunNotFound:     {404, ExitFailure, "No such run"},
	RunNotQueued:    {409, ExitFailure, "The run has left the queue"},
	RunNotAdmitted:  {409, ExitRefused, "The run is still queued"},
	RunNotEnded:     {409, ExitFailure, "The run has not ended"},
	StepNotFound:    {404, ExitFailure, "No such step instance"},
	StepTaken:       {409, ExitRefused, "The step instance can't be taken"},
	StepEnded:       {409, ExitFailure, "The step instance has ended"},
	StepLost:        {409, ExitLost, "The step instance is lost to this executor"},
	RunTaken:        {409, ExitRefused, "Another executor has the run"},
	RunLost:         {409, ExitLost, "The run is lost to this executor"},
	RunEnded:        {409, ExitRefused, "The run has ended"},
	HostInUse:       {409, ExitRefused, "The host name is in use"},
	CorruptValue:    {500, ExitFailure, "A value in etcd can't be read"},
	EtcdUnavailable: {503, ExitFailure, "etcd is unavailable"},
	EtcdDenied:      {503, ExitRefused, "etcd denied access"},
	EtcdFull:        {503, ExitFailure, "etcd is full"},
	StateUnwritable: {503, ExitFailure, "The state directory can't be written"},
	Stopping:        {503, ExitFailure, "Shutting down"},
	Unauthorized:    {401, ExitRefused, "Not authenticated"},
	Forbidden:       {403, ExitRefused, "Forbidden"},
	TooLarge:        {413, ExitRefused, "The request is too large"},
	SlowRequest:     {408, ExitFailure, "The request arrived too slowly"},
	TooManyRequests: {429, ExitFailure, "Too many requests"},
	TooMany:         {429, ExitFailure, "Too much is stored for one identity"},
	Malformed:       {400, ExitRefused, "Malformed request"},
	MediaType:       {415, ExitRefused, "Unsupported media type"},
	NotFound:        {404, ExitFailure, "Not found"},
	NotAllowed:      {405, ExitRefused, "Method not allowed"},
	Unavailable:     {503, ExitFailure, "Unavailable"},
	Internal:        {500, ExitFailure, "Internal error"},
}

// Status is the HTTP status of a code.
func (c Code) Status() int { return c.entry().status }

// Exit is the exit code of a code.
func (c Code) Exit() int { return c.entry().exit }

// Title says in a few words what the code means.
func (c Code) Title() string { return c.entry().title }

func (c Code) entry() entry {
	if e, ok := table[c]; ok {
		return e
	}
	return table[Internal]
}

// Codes returns all codes, in no order.
func Codes() []Code {
	all := make([]Code, 0, len(table))
	for c := range table {
		all = append(all, c)
	}
	return all
}

// Error is a problem with its code and a message for the user.
type Error struct {
	Code Code
	// Message says what happened and what to do, for a person.
	Message string
	// Field is the field of the input that is at fault, as its user spells it.
	Field string
	// Detail is data on the problem, such as why a claim does not fit. It is
	// shown as JSON.
	Detail any

	cause error
}

// New returns a problem with a formatted message. A %w wraps as in fmt.Errorf.
func New(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Field returns an [Invalid] problem of one field.
func Field(field, format string, args ...any) *Error {
	e := New(Invalid, format, args...)
	e.Field = field
	return e
}

// WithDetail returns a copy that carries data.
func (e *Error) WithDetail(detail any) *Error {
	c := *e
	c.Detail = detail
	return &c
}

// Error returns the message, behind the field if there is one.
func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + ": " + e.Message
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is makes two problems of one code the same for errors.Is, so that a bare
// &Error{Code: …} serves as a sentinel.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// maxClip bounds the input that a message quotes, in bytes.
const maxClip = 64

// Clip shortens input that a message quotes.
func Clip(input string) string { return text.Cut(input, maxClip) }

// Quote quotes input in a message, shortened.
func Quote(input string) string { return strconv.Quote(Clip(input)) }

// Of returns an error as a problem.
func Of(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return New(CodeOf(err), "%w", err)
}

// CodeOf returns the code of an error: of the first problem in its chain, or
// [Internal].
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
