package config

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Secret is a text that prints as "(hidden)", however it is printed, and as
// nothing where it is empty.
type Secret string

const hidden = "(hidden)"

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the text.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format hides the text from every verb of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText hides the text from JSON, YAML and structured logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// readSecretFile reads a file that holds a secret. It refuses one that all users may read or
// change. A group may: root keeps secrets for the group of a service in this way, and
// PostgreSQL and Kubernetes allow the same.
func readSecretFile(path string) ([]byte, error) {
	data, mode, err := readAll(path)
	if err == nil && isPublic(mode) {
		err = fmt.Errorf("%s holds a secret, and all users may read or change it %s", path, mend(path, mode))
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// isPublic reports whether all users may read or change a file.
func isPublic(mode fs.FileMode) bool { return mode&0o006 != 0 }

// mend says what the mode of a public file is, and how to mend it.
func mend(path string, mode fs.FileMode) string {
	return fmt.Sprintf("(mode %04o): run chmod o-rwx %s", mode.Perm(), path)
}

// envPrefix begins the names of berth's environment variables.
const envPrefix = "BERTH_"

// WithoutSettings returns the part of an environment that the commands of steps and sources
// get: none of the variables of berth. Who submits a step need not know how its worker is
// set up.
func WithoutSettings(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, envPrefix) })
}

// WithoutSecrets returns the part of an environment that the command of exec gets: no secret
// of berth, and of BERTH_USER only the name. The other settings stay, so that a berth in the
// command finds the same sidecar. So do the paths of files with secrets: who may read such a
// file is a matter of its mode.
func WithoutSecrets(env []string) []string {
	clean := make([]string, 0, len(env))
	for _, e := range env {
		variable, text, _ := strings.Cut(e, "=")
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Env() == variable })
		if i >= 0 && fields[i].holdsSecret(text) {
			name, _, _ := strings.Cut(text, ":")
			if fields[i].Name != "user" || name == "" {
				continue
			}
			e = variable + "=" + name
		}
		clean = append(clean, e)
	}
	return clean
}
