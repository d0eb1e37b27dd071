//go:build unix

package proc

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// programs makes files that can be run, and files that cannot.
func programs(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"a-script": "#!/bin/sh\nexit 5\n",
		"plain":    "exit $((6 + $#))\n",
		"empty":    "",
		// An interpreter may be a script, too.
		"nested":          "#!" + dir + "/a-script\n",
		"spaces":          "#! \t/bin/sh -e \nexit 5\n",
		"no-interpreter":  "#!/no/such/shell -x\n",
		"windows":         "#!/bin/sh\r\nexit 5\r\n",
		"no-more":         "#!" + dir + "/no-interpreter\n",
		"dir-interpreter": "#!" + dir + "\n",
		"not-interpreter": "#!" + dir + "/text\n",
		"bare":            "#!\nexit 7\n",
		"by-env":          "#!/usr/bin/env sh\nexit 5\n",
		"by-env-options":  "#!/usr/bin/env -S sh -e\nexit 5\n",
		"env-none":        "#!/usr/bin/env no-such-shell\n",
		"env-windows":     "#!/usr/bin/env sh\r\nexit 5\r\n",
		"env-argument":    "#!/usr/bin/env sh -e\nexit 5\n",
		"long":            "#!/" + strings.Repeat("x", 300) + "\nexit 7\n",
		"binary":          "\x7fPROGRAM\x00 of another machine\n",
		"-e":              "exit 8\n",
		"archive":         "exit 8\n\x00\x01 which the shell never reads",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("exit 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runs runs a command to its end, and returns its exit code.
func runs(t *testing.T, path string, argv []string) int {
	t.Helper()
	g, err := Start(path, argv, nil, nil, Attributes())
	if err != nil {
		var start *StartError
		if !errors.As(err, &start) {
			t.Fatal(err)
		}
		return start.Code
	}
	for g.Wait() != 0 {
	}
	return ExitCode(g.Reap())
}

func TestAProgramThatCannotBeRunIsFoundOutBeforeItsStart(t *testing.T) {
	dir := programs(t)
	for name, want := range map[string]struct {
		code int
		text string
	}{
		"none":            {127, "no such file"},
		"text":            {126, "permission denied"},
		"folder":          {126, "is a directory"},
		"fifo":            {126, "permission denied"},
		"text/none":       {126, "not a directory"},
		"no-interpreter":  {127, `its interpreter "/no/such/shell": no such file`},
		"windows":         {127, `its interpreter "/bin/sh\r": no such file or directory: its lines end as on Windows`},
		"no-more":         {127, `its interpreter "/no/such/shell": no such file`},
		"env-none":        {127, `its interpreter "no-such-shell": executable file not found`},
		"env-windows":     {127, `its interpreter "sh\r": executable file not found in $PATH: its lines end as on Windows`},
		"env-argument":    {127, `its interpreter "sh -e"`},
		"dir-interpreter": {126, "its interpreter"},
		"not-interpreter": {126, "its interpreter"},
	} {
		path, err := LookPath(filepath.Join(dir, name), nil)
		var start *StartError
		if !errors.As(err, &start) || start.Code != want.code || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %q, %v, want %d", name, path, err, want.code)
		}
	}
}

func TestAScriptWithoutAnInterpreterIsRunByTheShell(t *testing.T) {
	dir := programs(t)
	for name, want := range map[string]int{
		"a-script": 5, "nested": 5, "spaces": 5, "plain": 8, "empty": 0, "bare": 7, "long": 7, "archive": 8, "binary": 126, "by-env": 5, "by-env-options": 5,
	} {
		path, err := LookPath(filepath.Join(dir, name), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := runs(t, path, []string{name, "a", "b"}); got != want {
			t.Errorf("%s has ended with %d, want %d", name, got, want)
		}
	}
}

func TestACommandIsFoundInPATHAsByAShell(t *testing.T) {
	dir := programs(t)
	t.Chdir(dir)
	for _, c := range []struct {
		name, path, want string
		code             int
	}{
		{"a-script", "PATH=/bin", "", 127},
		{"a-script", "PATH=/bin:" + dir, dir + "/a-script", 0},
		{"a-script", "PATH=/bin:", "./a-script", 0},
		{"a-script", "PATH=:/bin", "./a-script", 0},
		{"a-script", "PATH=/bin::/usr/bin", "./a-script", 0},
		{"a-script", "PATH=", "./a-script", 0},
		{"a-script", "PATH=.", "./a-script", 0},
		{"-e", "PATH=", "./-e", 0},
		{"text", "PATH=", "", 126},
		{"text", "PATH=/bin", "", 127},
		{"folder", "PATH=", "", 127},
		{"a-script", "PATH=text:/no/such/folder:", "./a-script", 0},
		{"", "PATH=:/bin", "", 127},
		{"..", "PATH=:/bin", "", 127},
		{"no-interpreter", "PATH=", "", 127},
		{"sh", "HOME=/", "/bin/sh", 0},
	} {
		got, err := LookPath(c.name, []string{"A=b", c.path, "PATH=/other"}[:2])
		var start *StartError
		if got != c.want || (err == nil) != (c.code == 0) || errors.As(err, &start) && start.Code != c.code {
			t.Errorf("%q in %s is %q, %v, want %q, %d", c.name, c.path, got, err, c.want, c.code)
		}
	}
	if path, err := LookPath("-e", []string{"PATH="}); err != nil || runs(t, path, []string{"-e"}) != 8 {
		t.Errorf("a script with the name of an option has not run: %v", err)
	}
}

func TestAProgramWithoutItsLoaderIsFoundOutBeforeItsStart(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the files of programs are others")
	}
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	loader, err := loaderOf("/bin/sh")
	if err != nil || loader == "" {
		t.Skipf("the shell has no loader: %v", err)
	}
	none := strings.Repeat("/", len(loader)-1) + "0"
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(strings.Replace(string(sh), loader, none, 1)), 0o700); err != nil {
		t.Fatal(err)
	}
	var start *StartError
	if _, err := LookPath(path, nil); !errors.As(err, &start) || start.Code != 127 {
		t.Errorf("%v", err)
	}
	if _, err := LookPath("/bin/sh", nil); err != nil {
		t.Error(err)
	}
}

func FuzzInterpreters(f *testing.F) {
	for _, head := range []string{"#!/bin/sh\n", "#! \t/bin/sh -x\r\n", "#!", "#!\n", "#!/bin/sh\x00", "#!/" + strings.Repeat("x", 300), "\x7fELF\x02\x01\x01"} {
		f.Add([]byte(head))
	}
	if sh, err := os.ReadFile("/bin/sh"); err == nil {
		f.Add(sh[:min(len(sh), 4<<10)])
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		name, argument := interpreterOf(text[:min(len(text), headSize)])
		if strings.ContainsAny(name, " \t") || strings.ContainsAny(name+argument, "\n\x00") || name != "" && !strings.HasPrefix(string(text), "#!") {
			t.Errorf("%q names the interpreter %q", text, name)
		}
		path := filepath.Join(dir, "program")
		if err := os.WriteFile(path, text, 0o700); err != nil {
			t.Fatal(err)
		}
		loader, err := loaderOf(path)
		if loader != "" && (err != nil || len(loader) > unix.PathMax || !strings.Contains(string(text), loader)) {
			t.Errorf("%q names the loader %q: %v", text, loader, err)
		}
	})
}
