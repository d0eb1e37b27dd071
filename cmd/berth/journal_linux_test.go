package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
)

func TestOnlyTheJournalGetsLinesWithoutTheTime(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		for _, journal := range []bool{true, false} {
			path := filepath.Join(t.TempDir(), "log")
			file, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			var s unix.Stat_t
			if err := unix.Fstat(int(file.Fd()), &s); err != nil {
				t.Fatal(err)
			}
			t.Setenv("JOURNAL_STREAM", map[bool]string{true: fmt.Sprintf("%d:%d", s.Dev, s.Ino), false: "0:0"}[journal])
			newLogger(file, config.Settings{LogLevel: "info", LogFormat: format}, hclog.Info).Info("hello")
			line, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			hasTime := strings.Contains(string(line), "timestamp") || strings.HasPrefix(string(line), "20")
			if hasTime == journal || !strings.Contains(string(line), "hello") {
				t.Errorf("the journal: %t, format %s: %q", journal, format, line)
			}
		}
	}
}
