package api

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// ETag returns the entity tag of a state that was put at a revision; empty if there is none.
func ETag(revision int64) string {
	if revision == 0 {
		return ""
	}
	return strconv.Quote(strconv.FormatInt(revision, 10))
}

// IfMatch is the state that a change requires.
type IfMatch struct {
	IfMatch string `header:"If-Match" maxLength:"256" example:"\"42\"" doc:"Make the change only if this is the present ETag, otherwise answer precondition_failed: an ETag, several separated by commas, or * for any."`
}

// Condition returns what checks the revision of a pool, or of the limits; nil if nothing is
// required.
func (m IfMatch) Condition(what string) (func(revision int64) error, error) {
	if m.IfMatch == "" {
		return nil, nil
	}
	tags := strings.Split(m.IfMatch, ",")
	for i, tag := range tags {
		tags[i] = strings.TrimSpace(tag)
		strong := strings.TrimPrefix(tags[i], "W/") // a weak one matches nothing
		if tags[i] != "*" && (len(strong) < 2 || strong[0] != '"' || strong[len(strong)-1] != '"') {
			return nil, problem.Field("If-Match", "%s is not an ETag: send it as it was answered, in double quotes, or *", problem.Quote(tags[i]))
		}
	}
	return func(revision int64) error {
		switch tag := ETag(revision); {
		case revision == 0:
			return problem.New(problem.Precondition, "there is no ETag of %s: to create it, send the request without If-Match", what)
		case !slices.Contains(tags, tag) && !slices.Contains(tags, "*"):
			return problem.New(problem.Precondition, "the ETag of %s is %s, not %s: read the state again, decide, and send the request with that ETag in If-Match", what, tag, m.IfMatch)
		}
		return nil
	}, nil
}

// Put is what a PUT requires.
type Put struct {
	IfMatch
	IfNoneMatch string `header:"If-None-Match" enum:"*" doc:"* only creates: what exists is not replaced, but answers precondition_failed."`
}

// Condition returns what checks the revision of a pool, or of the limits; nil if nothing is
// required.
func (p Put) Condition(what string) (func(revision int64) error, error) {
	match, err := p.IfMatch.Condition(what)
	if err != nil || p.IfNoneMatch == "" {
		return match, err
	}
	return func(revision int64) error {
		if revision != 0 {
			return problem.New(problem.Precondition, "the ETag of %s is %s, and If-None-Match: * only creates: to replace it, send the request with that ETag in If-Match", what, ETag(revision))
		}
		if match == nil {
			return nil
		}
		return match(revision)
	}, nil
}
