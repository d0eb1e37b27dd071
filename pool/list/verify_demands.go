package list

// demandsOf finds demands that do not count, because they do not have all their keys.
func (v *verifier) demandsOf(d *demandsKey) {
	key := v.keys.Demand(d.DemandKey)
	if d.First != "" {
		first := v.keys.Demand(d.In(d.First))
		_, bad := v.bad[first]
		if of := v.demands[d.In(d.First)]; !bad && (of == nil || len(of.List) == 0 || of.List[0].Pools[d.Pool] == 0) {
			v.add(key, "it belongs to demands of key %s, which has none for this pool", first)
		}
		return
	}
	for _, name := range v.missing(d) {
		other := v.keys.Demand(d.In(name))
		if _, bad := v.bad[other]; !bad {
			v.add(other, "demands of key %s need it, created at revision %d: without it they do not count", key, d.created)
		}
	}
	for name := range d.List[0].Pools {
		if o := v.demands[d.In(name)]; o != nil && o.lease != d.lease {
			v.add(v.keys.Demand(d.In(name)), "it is on another lease than the demands of key %s", key)
		}
	}
	for i := range d.List {
		if h := d.List[i].Holder; h.Host != d.Host || h.Instance != d.Instance {
			v.add(key, "its demand of claim %q is one of %s/%s", d.List[i].Claim, h.Host, h.Instance)
		}
	}
}
