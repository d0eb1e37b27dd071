package config

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/access"
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

// ReadTokens reads a file of tokens. It refuses one that all users may read or change: who can
// change it can give roles.
func ReadTokens(path string) (access.Tokens, error) {
	data, err := readSecretFile(path)
	if err != nil {
		return access.Tokens{}, err
	}
	tokens, err := access.ParseTokens(data)
	if err != nil {
		return tokens, fmt.Errorf("%s: %w", path, err)
	}
	return tokens, nil
}

// ServerTokens returns the tokens of HTTP clients, or nil if there is no file of them. The
// function that it returns is to be called for each request: the file is read again when it
// changes, and a change is reported to log, unless that is nil. The error is
// [Problems].
func (s Settings) ServerTokens(log hclog.Logger) (func() access.Tokens, error) {
	get, problems := s.serverTokens(log)
	return get, problems.err()
}

func (s *Settings) serverTokens(log hclog.Logger) (func() access.Tokens, Problems) {
	if s.TokensFile == "" {
		return nil, nil
	}
	const field = "tokens_file"
	r, problems := reload(log, []file{{field: field, path: s.TokensFile, secret: true}}, func(read contents) (access.Tokens, Problems) {
		tokens, err := access.ParseTokens(read[field])
		if err != nil {
			return tokens, Problems{{Field: field, Message: fmt.Sprintf("%s: %v", s.TokensFile, err)}}
		}
		return tokens, nil
	}, func(ts access.Tokens) []any { return []any{"tokens", len(ts.List)} })
	if len(problems) > 0 {
		return nil, problems
	}
	return r.get, nil
}

// isPublic reports whether all users may read or change a file.
func isPublic(mode fs.FileMode) bool { return mode&0o006 != 0 }

// mend says what the mode of a public file is, and how to mend it.
func mend(path string, mode fs.FileMode) string {
	return fmt.Sprintf("(mode %04o): run chmod o-rwx %s", mode.Perm(), path)
}

// VariablePrefix begins the names of berth's environment variables.
const VariablePrefix = "BERTH_"

// WithoutSettings returns the part of an environment that the commands of steps and sources
// get: none of the variables of berth, and of those of tracing neither the trace context of this
// process, nor its name, nor headers, which can have secrets. Who submits a step need not know
// how its worker is set up. Nor do they get the socket on which systemd waits for the service itself.
func WithoutSettings(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		variable, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(e, VariablePrefix) || variable == "NOTIFY_SOCKET" || slices.Contains(ofTracing, variable) ||
			strings.HasPrefix(variable, "OTEL_EXPORTER_") && strings.HasSuffix(variable, "_HEADERS")
	})
}

// ofTracing are the variables that say which trace this process belongs to, and as what.
var ofTracing = []string{"TRACEPARENT", "TRACESTATE", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"}

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
