package text

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxHost bounds the name of a host, in bytes.
const maxHost = 63

// Host returns the name of a host for the name of a machine: at most 63 of a-z, 0-9, '.', '_' and
// '-', the first a letter or digit. A name with other characters, or a longer one, ends with a hash
// of the whole name, so that different machines have different names. It is empty if name is.
func Host(name string) string {
	if name == "" {
		return ""
	}
	lower := strings.ToLower(name)
	plain := strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-", r) {
			return r
		}
		return '-'
	}, lower)
	plain = strings.TrimLeft(plain, "._-")
	if plain == lower && len(plain) <= maxHost {
		return plain
	}
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:4])
	plain = strings.TrimRight(plain[:min(len(plain), maxHost-1-len(hash))], "._-")
	if plain == "" {
		plain = "host"
	}
	return plain + "-" + hash
}
