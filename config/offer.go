package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/strict"
)

// offer is one of several ways in which a secret can be given.
type offer struct {
	field string // that gave it
	from  origin
	text  Secret // the secret itself, or
	file  string // the file that holds it
}

// offers are the two ways that every secret has: a field, and one that names a
// file.
func (l *loader) offers(field string, text Secret, file string) []offer {
	var all []offer
	if text != "" {
		all = append(all, offer{field: field, from: l.origins[field], text: text})
	}
	if file != "" {
		name := field + "_file"
		all = append(all, offer{field: name, from: l.origins[name], file: file})
	}
	return all
}

// secret takes the strongest offer. Two that are equally strong are a problem:
// it is not clear which is meant.
func (l *loader) secret(field string, offers []offer) Secret {
	if len(offers) == 0 {
		return ""
	}
	best := slices.MaxFunc(offers, func(a, b offer) int { return cmp.Compare(a.from.strength, b.from.strength) })
	for _, o := range offers {
		if o.field != best.field && o.from.strength == best.from.strength {
			l.wrong(o.field, fmt.Sprintf("gives the %s, which %s (%s) also gives", field, best.field, best.from.name))
		}
	}
	if best.file == "" {
		return best.text
	}
	text, err := readSecret(best.file)
	if err != nil {
		l.wrong(best.field, err.Error())
		return ""
	}
	f, _ := lookup(field)
	if !f.value.set(&l.settings, text) {
		l.problems = append(l.problems, Problem{
			Field: best.field, Source: best.from.name, Value: best.file, Message: "must hold " + f.Must,
		})
		return ""
	}
	return Secret(text)
}

// secretLimit bounds a secret in a file, in bytes.
const secretLimit = 4096

// readSecret reads the one line of a file.
func readSecret(path string) (string, error) {
	data, err := readSecretFile(path)
	if err != nil {
		return "", err
	}
	if len(data) > secretLimit {
		return "", fmt.Errorf("%s is longer than %d bytes", path, secretLimit)
	}
	text := strings.TrimRight(string(strict.Text(data)), "\r\n")
	if text == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return text, nil
}
