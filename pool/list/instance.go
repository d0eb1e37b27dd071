package list

import (
	"strings"
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
