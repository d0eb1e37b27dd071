package list

import (
	"strings"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/wire"
)

// kind is what a key is for.
type kind int

const (
	ignoredKey kind = iota
	unknownKey      // below those of pools
	specKey
	slotKey
	demandKey
	offerKey
	idKey
	roleKey
)

// kindOf returns what a key is for, with the name of its pool or claim.
func kindOf(k wire.Keys, key string) (kind, string) {
	if rest, is := strings.CutPrefix(key, k.Pools()); is {
		name, rest, _ := strings.Cut(rest, "/")
		switch {
		case rest == "spec" && pool.ValidateName(name) == nil:
			return specKey, name
		case strings.HasPrefix(rest, "slots/") && pool.ValidateName(name) == nil:
			return slotKey, name
		case strings.HasPrefix(rest, "demands/"):
			return demandKey, name
		}
		return unknownKey, name
	}
	if id, is := strings.CutPrefix(key, k.ID("")); is {
		return idKey, id
	}
	switch {
	case key == k.Role():
		return roleKey, ""
	case strings.HasPrefix(key, k.OffersAll()):
		return offerKey, ""
	}
	return ignoredKey, ""
}
