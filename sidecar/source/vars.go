package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

// Bounds of the vars of a source.
const (
	maxVars    = 100
	maxPattern = 1 << 10
	// maxAllowed bounds the list of allowed values in an error, in bytes.
	maxAllowed = 256
)

// Var declares a field that an item can have besides its id.
type Var struct {
	// Required refuses items without the var. Null counts as missing.
	Required bool
	// Default is the value of the var in an item without it; nil is null.
	Default json.RawMessage
	// Pattern, from [NewPattern], matches the allowed values. Values lists them. Both
	// apply to values as a template writes them. A var has at most one of the two.
	Pattern *regexp.Regexp
	Values  []string
}

// NewPattern compiles the pattern of a [Var].
func NewPattern(text string) (*regexp.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("it is %d bytes long: use at most %d", len(text), maxPattern)
	}
	p, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("it is not an RE2 regular expression: %w", err)
	}
	p.Longest() // a match from the first byte to the last is found if there is one
	return p, nil
}

// varName matches the names that a template can use as .item.NAME.
var varName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// validateVars returns a problem that names the var if the declaration is not valid.
func (s *Spec) validateVars() error {
	if len(s.Vars) > maxVars {
		return problem.Field("vars", "%d are too many: use at most %d", len(s.Vars), maxVars)
	}
	defaults := map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(s.Vars)) {
		v, field := s.Vars[name], "vars."+name
		switch {
		case !varName.MatchString(name):
			return problem.Field("vars."+problem.Clip(name), "%q cannot be used in templates: use 1 to 63 of A-Z, a-z, 0-9 and '_', the first not a digit", problem.Clip(name))
		case name == s.ID:
			return problem.Field(field, "it is the id of the item: use another name, or another field as the id")
		case v.Required && v.Default != nil:
			return problem.Field(field+".default", "required and default cannot be used together")
		case v.Pattern != nil && v.Values != nil:
			return problem.Field(field+".values", "pattern and values cannot be used together")
		case v.Values != nil && len(v.Values) == 0:
			return problem.Field(field+".values", "at least one value is required")
		}
		if given(v.Default) {
			defaults[name] = v.Default
			if !v.allows(v.Default) {
				return problem.Field(field+".default", "%s is not allowed by the var itself: allowed %s", problem.Clip(string(v.Default)), v.allowed())
			}
		}
	}
	if why := unusable(encode(defaults)); why != "" {
		return problem.Field("vars", "an item with all defaults cannot be used: %s", why)
	}
	return nil
}

// withVars returns the value of an item: as it was listed, or, if the source declares
// vars, an object with its id and every var.
func (s *Spec) withVars(it Item) (json.RawMessage, error) {
	if s.Vars == nil {
		return it.Value, nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(it.Value, &fields) != nil { // a string, which has only an id
		fields = map[string]json.RawMessage{s.ID: it.Value}
	}
	names := slices.Sorted(maps.Keys(s.Vars))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if _, declared := s.Vars[name]; !declared && name != s.ID {
			return nil, problem.Field("item", "it has %q, which source %q does not declare: use %s",
				problem.Clip(name), s.Name, listed(append([]string{s.ID}, names...)))
		}
	}
	for _, name := range names {
		v, value := s.Vars[name], fields[name]
		switch {
		case given(value):
			if !v.allows(value) {
				return nil, problem.Field("item."+name, "%s is not allowed by source %q: allowed %s", problem.Clip(string(value)), s.Name, v.allowed())
			}
		case v.Required:
			return nil, problem.Field("item."+name, "it is missing, and source %q requires it: allowed %s", s.Name, v.allowed())
		case v.Default != nil:
			fields[name] = v.Default
		default:
			fields[name] = json.RawMessage("null")
		}
	}
	whole := encode(fields)
	if why := unusable(whole); why != "" {
		return nil, problem.Field("item", "with the defaults of source %q, %s", s.Name, why)
	}
	return whole, nil
}

// given reports whether a value is present and not null.
func given(value json.RawMessage) bool { return value != nil && string(value) != "null" }

// allows reports whether the var may have a value that is present.
func (v *Var) allows(value json.RawMessage) bool {
	if v.Pattern == nil && v.Values == nil {
		return true
	}
	text := string(value)
	switch {
	case strings.ContainsRune("[{", rune(value[0])):
		return false // a template writes it only as JSON
	case value[0] == '"' && json.Unmarshal(value, &text) != nil:
		return false
	case v.Values != nil:
		return slices.Contains(v.Values, text)
	}
	at := v.Pattern.FindStringIndex(text)
	return at != nil && at[0] == 0 && at[1] == len(text)
}

// allowed completes a sentence that begins with "allowed".
func (v *Var) allowed() string {
	switch {
	case v.Values != nil:
		return "are " + listed(v.Values)
	case v.Pattern != nil:
		return "is a string, a number, true or false that matches " + text.Cut(v.Pattern.String(), maxAllowed)
	}
	return "is any value but null"
}

// listed quotes texts for an error.
func listed(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return text.Cut(strings.Join(quoted, ", "), maxAllowed)
}

// unusable returns why a step cannot have an item; empty if it can.
func unusable(value json.RawMessage) string {
	var p *problem.Error
	if errors.As((&step.Items{List: []json.RawMessage{value}}).Validate(), &p) {
		return p.Message
	}
	return ""
}
