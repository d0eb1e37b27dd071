package main

import (
	"errors"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// declared is what a file says of the pools and of the limits; nil is nothing at
// all.
type declared struct {
	pools  map[string]declaredPool
	limits *declaredLimits
}

// declaredPool is a pool in a file. A limit must be there; a lease duration or a
// reservation that is not is the default; and a pause is left alone unless the
// file speaks of it.
type declaredPool struct {
	spec   pool.Spec
	paused *bool
}

// change is what has to be set for a pool to be as declared.
func (d declaredPool) change() pool.Change {
	s := d.spec
	return pool.Change{Limit: &s.Limit, LeaseDuration: &s.LeaseDuration, ReserveAfter: &s.ReserveAfter, Paused: d.paused}
}

// decodeDeclared reads a file of the form
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
// strictly. Its error is [*fileProblems], with all of them.
func decodeDeclared(name string, data []byte) (declared, error) {
	var d decoder
	d.document(data)
	if err := d.problems(name); err != nil {
		return declared{}, err
	}
	return d.found, nil
}

// decoder walks through a document and notes what is wrong with it.
type decoder struct {
	strict
	found declared
}

func (d *decoder) document(data []byte) {
	root := d.root(data, "pools or limits")
	if root == nil {
		return
	}
	d.mapping(root, "the file", []string{"pools", "limits"}, func(_ string, key, value *yaml.Node) {
		if key.Value == "limits" {
			d.limits(value)
			return
		}
		d.found.pools = map[string]declaredPool{}
		d.mapping(value, "pools", nil, d.pool)
	})
	if d.found.pools == nil && d.found.limits == nil && len(d.lines) == 0 {
		d.wrong(root, "pools and limits are missing")
	}
}

// pool reads one pool.
func (d *decoder) pool(path string, key, n *yaml.Node) {
	before := len(d.lines)
	if err := pool.ValidateName(key.Value); err != nil {
		d.wrong(key, "%s", messageOf(err))
	}
	p := declaredPool{spec: pool.DefaultSpec()}
	limit := false
	values := map[string]*yaml.Node{}
	d.mapping(n, path, []string{"limit", "lease_duration", "reserve_after", "paused"}, func(path string, key, value *yaml.Node) {
		limit = limit || key.Value == "limit"
		values[key.Value] = value
		if value.Kind != yaml.ScalarNode || isEmpty(value) {
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
	for err := p.spec.Validate(); values[fieldOf(err)] != nil; err = p.spec.Validate() {
		d.wrong(values[fieldOf(err)], "%s.%s", path, err)
		p.reset(fieldOf(err)) // to see what else is wrong
	}
	if len(d.lines) == before {
		d.found.pools[key.Value] = p
	}
}

// reset makes a field what it is if nothing is said.
func (d *declaredPool) reset(field string) {
	s := pool.DefaultSpec()
	switch field {
	case "limit":
		d.spec.Limit = s.Limit
	case "lease_duration":
		d.spec.LeaseDuration = s.LeaseDuration
	case "reserve_after":
		d.spec.ReserveAfter = s.ReserveAfter
	}
}

// set reads one field. What it returns says what the field must be, if it can't
// be read.
func (d *declaredPool) set(field, text string) (must string) {
	var err error
	switch field {
	case "limit":
		d.spec.Limit, err = strconv.Atoi(text)
		must = "a number of slots, 0 (closed) or -1 (unlimited)"
	case "lease_duration":
		d.spec.LeaseDuration, err = time.ParseDuration(text)
		must = "a duration such as 30s, 5m or 1h30m"
	case "reserve_after":
		d.spec.ReserveAfter, err = pool.ParseReserveAfter(text)
		must = "a duration such as 30s or 5m, 0 (at once) or -1 (never)"
	case "paused":
		d.paused = new(text == "true")
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
