package manifest

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/strict"
	"github.com/berthhq/berth/pool"
)

// Declaration holds the pools and limits of a file. A section that is not in the file is
// nil.
type Declaration struct {
	Pools  map[string]Pool
	Limits *Limits
}

// Pool is a pool in a file. The limit is required. A lease duration or reservation that
// is left out is the default. Paused is nil if the file leaves it out.
type Pool struct {
	Spec   pool.Spec
	Paused *bool
}

// Change returns the change that makes a pool as declared.
func (d Pool) Change() pool.Change {
	s := d.Spec
	return pool.Change{Limit: &s.Limit, LeaseDuration: &s.LeaseDuration, ReserveAfter: &s.ReserveAfter, Paused: d.Paused}
}

// ReadDeclaration reads a file of the form
//
//	pools:
//	  NAME:
//	    limit: 3
//	    lease_duration: 5m
//	    reserve_after: 1m
//	    paused: false
//	limits:
//	  max_concurrent_runs: 10
//	  tags:
//	    env=prod: 2
//
// strictly. Its error is a [*Problems].
func ReadDeclaration(name string, data []byte) (Declaration, error) {
	d := declarationReader{reader: reader{name: name, removed: map[string]string{"retain": pool.RetainRemoved}}}
	d.document(data)
	if err := d.problems(); err != nil {
		return Declaration{}, err
	}
	return d.found, nil
}

// declarationReader walks through a document and notes what is wrong with it.
type declarationReader struct {
	reader
	found Declaration
}

func (d *declarationReader) document(data []byte) {
	root := d.root(data, "pools or limits")
	if root == nil {
		return
	}
	d.mapping(root, "the file", []string{"pools", "limits"}, func(_ string, key, value *yaml.Node) {
		if key.Value == "limits" {
			d.limits(value)
			return
		}
		d.found.Pools = map[string]Pool{}
		d.mapping(value, "pools", nil, d.pool)
	})
	if d.found.Pools == nil && d.found.Limits == nil && len(d.lines) == 0 {
		d.wrong(root, "pools and limits are missing")
	}
}

// pool reads one pool.
func (d *declarationReader) pool(path string, key, n *yaml.Node) {
	before := len(d.lines)
	if err := pool.ValidateName(key.Value); err != nil {
		d.wrong(key, "%s", messageOf(err))
	}
	p := Pool{Spec: pool.DefaultSpec()}
	limit := false
	values := map[string]*yaml.Node{}
	d.mapping(n, path, []string{"limit", "lease_duration", "reserve_after", "paused"}, func(path string, key, value *yaml.Node) {
		limit = limit || key.Value == "limit"
		values[key.Value] = value
		if value.Kind != yaml.ScalarNode || strict.IsNull(value) {
			d.wrong(value, "%s must be a single value", path)
		} else if !d.plain(path, value) {
			return
		} else if must := p.set(key.Value, value.Value); must != "" {
			d.wrong(value, "%s can't be %q: it must be %s", path, value.Value, must)
			p.reset(key.Value)
		}
	})
	if !limit && n.Kind == yaml.MappingNode {
		d.wrong(key, "%s needs a limit", path)
	}
	for err := p.Spec.Validate(); values[fieldOf(err)] != nil; err = p.Spec.Validate() {
		d.wrong(values[fieldOf(err)], "%s.%s", path, err)
		p.reset(fieldOf(err)) // to see what else is wrong
	}
	if len(d.lines) == before {
		d.found.Pools[key.Value] = p
	}
}

// reset makes a field what it is if nothing is said.
func (d *Pool) reset(field string) {
	s := pool.DefaultSpec()
	switch field {
	case "limit":
		d.Spec.Limit = s.Limit
	case "lease_duration":
		d.Spec.LeaseDuration = s.LeaseDuration
	case "reserve_after":
		d.Spec.ReserveAfter = s.ReserveAfter
	}
}

// set reads one field. What it returns says what the field must be, if it can't
// be read.
func (d *Pool) set(field, text string) (must string) {
	var err error
	switch field {
	case "limit":
		d.Spec.Limit, err = strconv.Atoi(text)
		if strings.HasPrefix(text, "+") { // it looks like an increase
			err = strconv.ErrSyntax
		}
		must = "a number of slots, 0 (closed) or -1 (unlimited)"
	case "lease_duration":
		d.Spec.LeaseDuration, err = time.ParseDuration(text)
		must = "a duration such as 30s, 5m or 1h30m"
	case "reserve_after":
		d.Spec.ReserveAfter, err = pool.ParseReserveAfter(text)
		must = "a duration such as 30s or 5m, 0 (at once) or -1 (never)"
	case "paused":
		d.Paused = new(text == "true")
		if text != "true" && text != "false" {
			err = strconv.ErrSyntax
		}
		must = "true or false"
	}
	if err == nil {
		return ""
	}
	return must
}

// fieldOf returns the field that a problem is about, messageOf its message
// without the field.
func fieldOf(err error) string {
	var p *problem.Error
	if errors.As(err, &p) {
		return p.Field
	}
	return ""
}

func messageOf(err error) string {
	var p *problem.Error
	if errors.As(err, &p) {
		return p.Message
	}
	return err.Error()
}

// Limits holds the limits of runs in a file. What the file leaves out is nil.
type Limits struct {
	Max *int
	// Tags holds the limits of tags by their names. A limit of [run.Unlimited] is to be
	// removed.
	Tags map[string]run.TagLimit
}

// limits reads the section of the limits.
func (d *declarationReader) limits(n *yaml.Node) {
	found := Limits{}
	d.mapping(n, "limits", []string{"max_concurrent_runs", "tags"}, func(path string, key, value *yaml.Node) {
		if key.Value == "tags" {
			found.Tags = map[string]run.TagLimit{}
			d.mapping(value, path, nil, func(path string, key, value *yaml.Node) {
				d.tagLimit(found.Tags, path, key, value)
			})
			return
		}
		max := d.number(path, value)
		limits := run.Limits{MaxConcurrentRuns: max}
		if err := limits.Validate(); err != nil {
			d.wrong(value, "limits.%s", err)
		}
		found.Max = &max
	})
	d.found.Limits = &found
}

func (d *declarationReader) tagLimit(to map[string]run.TagLimit, path string, key, value *yaml.Node) {
	before := len(d.lines)
	n := d.number(path, value)
	if len(d.lines) > before {
		return
	}
	if strings.HasSuffix(key.Value, "=") || key.Value == "" {
		d.wrong(key, "limits.tags: %q is not a tag: write KEY=VALUE, KEY for all values together, or KEY=* for each value separately", key.Value)
		return
	}
	t, err := run.ParseTagLimit(key.Value + "=" + strconv.Itoa(n))
	switch {
	case err == nil:
		to[t.Name()] = t
	case fieldOf(err) == "tag.limit":
		d.wrong(value, "%s: %s", path, messageOf(err))
	default:
		d.wrong(key, "limits.tags: %s", messageOf(err))
	}
}
