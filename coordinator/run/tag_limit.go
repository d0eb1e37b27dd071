package run

import (
	"cmp"
	"errors"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// TagLimit bounds the runs in progress that have a tag.
type TagLimit struct {
	// Key of the tag.
	Key string `json:"key"`
	// Value that is meant. If it is empty, all values are: together, or each by
	// itself with PerUniqueValue.
	Value          string `json:"value,omitempty"`
	PerUniqueValue bool   `json:"per_unique_value,omitempty"`
	// Limit from 0 to [MaxLimit]. [Unlimited] removes the limit where one is set.
	Limit int `json:"limit"`
}

// ParseTagLimit reads KEY=VALUE=N, KEY=N (all values together) or KEY=*=N (each
// value by itself).
func ParseTagLimit(text string) (TagLimit, error) {
	const how = "%q is no limit of a tag: write KEY=VALUE=N, KEY=N for all values together, or KEY=*=N for each value by itself"
	at := strings.LastIndexByte(text, '=')
	if at < 0 {
		return TagLimit{}, problem.Field("tag", how, problem.Clip(text))
	}
	n, err := strconv.Atoi(text[at+1:])
	if err != nil {
		return TagLimit{}, problem.Field("tag", how, problem.Clip(text))
	}
	key, value, hasValue := strings.Cut(text[:at], "=")
	t := TagLimit{Key: key, Value: value, Limit: n}
	if value == "*" {
		t.Value, t.PerUniqueValue = "", true
	} else if hasValue && value == "" {
		return TagLimit{}, problem.Field("tag", how, problem.Clip(text))
	}
	return t, t.validate("tag")
}

// String writes a limit as [ParseTagLimit] reads it.
func (t TagLimit) String() string { return t.Name() + "=" + strconv.Itoa(t.Limit) }

// Name is what is limited: KEY=VALUE, KEY or KEY=*.
func (t TagLimit) Name() string {
	switch {
	case t.PerUniqueValue:
		return t.Key + "=*"
	case t.Value != "":
		return t.Key + "=" + t.Value
	}
	return t.Key
}

// what is the limit without its number.
func (t TagLimit) what() TagLimit {
	t.Limit = 0
	return t
}

func (t TagLimit) compare(o TagLimit) int {
	return cmp.Or(cmp.Compare(t.Key, o.Key), cmp.Compare(t.Name(), o.Name()))
}

func (t TagLimit) validate(field string) error {
	if t.PerUniqueValue && t.Value != "" {
		return problem.Field(field+".per_unique_value", "'%s' is one value: a limit is about one value or about each, not both", problem.Clip(t.Value))
	}
	value := t.Value
	if value == "" {
		value = "any"
	}
	if err := ValidateTag(t.Key, value); err != nil {
		var p *problem.Error
		if errors.As(err, &p) {
			p.Field = field
		}
		return err
	}
	return validateLimit(field+".limit", t.Limit)
}
