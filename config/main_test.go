package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// given are sources of a test: texts by field name.
type given struct{ file, env, flag map[string]string }

// sources makes Sources of them: the file's entries as a file of YAML.
func (g given) sources(t testing.TB) Sources {
	t.Helper()
	src := Sources{
		Env: func(name string) (string, bool) {
			for field, text := range g.env {
				if f, _ := lookup(field); f.Env() == name {
					return text, true
				}
			}
			return "", false
		},
		Flag: func(name string) (string, bool) {
			for field, text := range g.flag {
				if f, _ := lookup(field); f.Flag() == name {
					return text, true
				}
			}
			return "", false
		},
		Hostname: func() (string, error) { return "Machine", nil },
	}
	if g.file != nil {
		var lines []string
		for field, text := range g.file {
			lines = append(lines, field+": '"+strings.ReplaceAll(text, "'", "''")+"'")
		}
		src.File = write(t, "berth.yaml", strings.Join(lines, "\n"))
	}
	return src
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// environment is one that holds a single variable.
func environment(name, value string) func(string) (string, bool) {
	return func(asked string) (string, bool) {
		if asked == name {
			return value, true
		}
		return "", false
	}
}
