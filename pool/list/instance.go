package list

import (
	"fmt"
	"strings"

	"github.com/berthhq/berth/pool"
)

// instance names an instance.
type instance struct{ host, name string }

// String returns HOST/INSTANCE, empty for none.
func (i instance) String() string {
	if i == (instance{}) {
		return ""
	}
	return i.host + "/" + i.name
}

// split splits HOST/INSTANCE/ID. An id alone has no slash.
func split(named string) (by instance, id string) {
	host, rest, _ := strings.Cut(named, "/")
	name, id, ok := strings.Cut(rest, "/")
	if !ok {
		return instance{}, named
	}
	return instance{host, name}, id
}

// placesOf returns the instance whose free places a key has.
func (k spelling) placesOf(key string) (instance, error) {
	host, name, _ := strings.Cut(strings.TrimPrefix(key, k.PlacesAll()), "/")
	if pool.ValidateName(host) != nil || pool.ValidateName(name) != nil {
		return instance{}, fmt.Errorf("key %q is not one of places", key)
	}
	return instance{host, name}, nil
}
