package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func open(t *testing.T, dir, boot string) *Journal {
	t.Helper()
	j, err := Open(dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func put(t *testing.T, j *Journal, name, value string) {
	t.Helper()
	if err := j.Put(name, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

func TestAJournalSurvivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, "boot")
	put(t, j, "db/0/0", "one")
	put(t, j, "db/0/1", "two words")
	put(t, j, "db/0/0", "three")
	j.Forget("db/0/1")
	again := open(t, dir, "boot")
	if got := string(again.Get("db/0/0")); got != "three" {
		t.Errorf("got %q", got)
	}
	if got := open(t, t.TempDir(), "boot").Get("db/0/0"); got != nil {
		t.Errorf("a new journal has %q", got)
	}
}

func TestAJournalOfAnotherBootIsVoid(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir, "before"), "db/0/0", "one")
	if got := open(t, dir, "now").Get("db/0/0"); got != nil {
		t.Errorf("got %q", got)
	}
}

// A process dies at any byte of a write: what was answered before is there.
func TestAJournalIsCutAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, "boot")
	put(t, j, "a", "first")
	name := filepath.Join(dir, fmt.Sprintf("journal.%d", j.at))
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	put(t, j, "a", "second")
	put(t, j, "b", "third")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := len(before); n <= len(whole); n++ {
		cut := t.TempDir()
		if err := os.WriteFile(filepath.Join(cut, "journal.1"), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		j := open(t, cut, "boot")
		want := "first"
		if bytes.Count(whole[:n], []byte{'\n'}) > bytes.Count(before, []byte{'\n'}) {
			want = "second"
		}
		if got := string(j.Get("a")); got != want {
			t.Fatalf("cut at byte %d: %q, want %q", n, got, want)
		}
	}
}

// A process dies at any byte of a rotation: the other file counts.
func TestARotationIsCutAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, "boot")
	for i := range 3 {
		put(t, j, fmt.Sprint("slot", i), fmt.Sprint("value", i))
	}
	if err := j.rotate(); err != nil {
		t.Fatal(err)
	}
	var files [2][]byte
	for i := range files {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, fmt.Sprintf("journal.%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	for n := range files[j.at] {
		cut := t.TempDir()
		for i, data := range files {
			if i == j.at {
				data = data[:n]
			}
			if err := os.WriteFile(filepath.Join(cut, fmt.Sprintf("journal.%d", i)), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		again := open(t, cut, "boot")
		for i := range 3 {
			if got := string(again.Get(fmt.Sprint("slot", i))); got != fmt.Sprint("value", i) {
				t.Fatalf("cut at byte %d: %q", n, got)
			}
		}
	}
}

func TestAJournalStaysSmall(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, "boot")
	value := string(bytes.Repeat([]byte{'x'}, 200))
	for i := range 20_000 {
		put(t, j, fmt.Sprint("slot", i%10), value)
	}
	for i := range j.files {
		info, err := j.files[i].Stat()
		if err != nil || info.Size() > maxSize+1000 {
			t.Errorf("file %d: %v, %v", i, info.Size(), err)
		}
	}
	if again := open(t, dir, "boot"); string(again.Get("slot9")) != value {
		t.Error("a value is lost")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(magic + " 1 boot\n"))
	f.Add(appendLine(appendLine([]byte(magic+" 7 boot\n"), complete, nil), "a", []byte("b")))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, values, ok := read(data, "boot"); ok && values == nil {
			t.Error("complete without values")
		}
	})
}

func BenchmarkPut(b *testing.B) {
	j, err := Open(b.TempDir(), "boot")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	value := bytes.Repeat([]byte{'x'}, 300)
	for b.Loop() {
		if err := j.Put("db/0/0", value); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAJournalThatCannotBeReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "journal.1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "boot"); err == nil {
		t.Error("it was opened, and who has slots is forgotten")
	}
}

func TestAJournalThatCannotBeWrittenIsReadStill(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, "boot")
	put(t, j, "a", "first")
	other := j.files[1-j.at]
	j.files[1-j.at], j.err = nil, os.ErrPermission
	j.size = j.most
	if err := j.Put("a", []byte("second")); err == nil {
		t.Error("it was written")
	}
	if got := string(j.Get("a")); got != "first" {
		t.Errorf("got %q", got)
	}
	j.files[1-j.at] = other
	put(t, j, "a", "third")
}
