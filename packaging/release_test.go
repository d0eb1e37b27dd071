//go:build linux

package packaging

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// sizeLimit bounds the stripped binary, in bytes.
const sizeLimit = 36 << 20

func TestAReleaseIsTheSameFromAnyFolder(t *testing.T) {
	t.Parallel()
	first, second := release(t, "old"), release(t, "again")
	files, err := os.ReadDir(first)
	if err != nil || len(files) != 5 {
		t.Fatalf("the release is %v, %v", files, err)
	}
	if err := command("diff", "-r", first, second); err != nil {
		t.Error(err)
	}
	if err := command("sh", "-ec", `cd "$1" && sha256sum --strict -c SHA256SUMS && test "$(wc -l <SHA256SUMS)" = 4`, "sh", first); err != nil {
		t.Error(err)
	}
}

func TestTheBinaryIsSmallAndKnowsItsVersion(t *testing.T) {
	t.Parallel()
	dir := unpacked(t)
	berth := filepath.Join(dir, "berth")
	info, err := os.Stat(berth)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("the binary has %d bytes", info.Size()); info.Size() > sizeLimit {
		t.Errorf("the binary has %d bytes, more than %d", info.Size(), sizeLimit)
	}
	if got, err := output(berth, "version"); err != nil || !strings.HasPrefix(got, "berth "+oldVersion+" ") {
		t.Errorf("berth version prints %q, %v", got, err)
	}
	for _, file := range []string{"LICENSE", "README.md", "berth.yaml", "systemd/berth-sidecar.service", "man/berth.1.gz", "completions/berth.bash", "sysusers.conf"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
}

func TestTheBillOfMaterialsHasTheModules(t *testing.T) {
	t.Parallel()
	var bom struct {
		Format   string `json:"bomFormat"`
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version string }
	}
	data := read(t, filepath.Join(release(t, "old"), "berth_"+oldVersion+"_linux_"+runtime.GOARCH+".cdx.json"))
	if err := json.Unmarshal([]byte(data), &bom); err != nil {
		t.Fatal(err)
	}
	if m := bom.Metadata.Component; bom.Format != "CycloneDX" || m.Name != "github.com/berthhq/berth" || m.Version != oldVersion {
		t.Errorf("it is %s of %+v", bom.Format, m)
	}
	etcd := regexp.MustCompile(`\sgo\.etcd\.io/etcd/server/v3 (v\S+)`).FindStringSubmatch(read(t, "../go.mod"))
	for name, version := range map[string]string{"go.etcd.io/etcd/server/v3": etcd[1], "std": ""} {
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name, Version string }) bool {
			return c.Name == name && (version == "" || c.Version == version)
		}) {
			t.Errorf("it does not have %s %s", name, version)
		}
	}
}

// packaged are the files of both packages, with their modes.
var packaged = map[string]string{
	"/usr/bin/berth": "-rwxr-xr-x", "/etc/berth": "drwxr-xr-x", "/etc/berth/sources": "drwxr-xr-x", "/etc/berth/berth.yaml": "-rw-r--r--",
	"/usr/lib/systemd/system/berth-server.service": "-rw-r--r--", "/usr/lib/systemd/system/berth-sidecar.service": "-rw-r--r--",
	"/usr/lib/systemd/system/berth-worker.service": "-rw-r--r--", "/usr/lib/systemd/system/berth-coordinator.service": "-rw-r--r--",
	"/usr/lib/systemd/system/berth-source@.service": "-rw-r--r--",
	"/usr/lib/sysusers.d/berth.conf":                "-rw-r--r--", "/usr/lib/tmpfiles.d/berth.conf": "-rw-r--r--",
	"/usr/share/bash-completion/completions/berth": "-rw-r--r--", "/usr/share/fish/vendor_completions.d/berth.fish": "-rw-r--r--",
	"/usr/share/doc/berth/README.md": "-rw-r--r--", "/usr/share/man/man1/berth.1.gz": "-rw-r--r--", "/usr/share/man/man1/berth-sidecar.1.gz": "-rw-r--r--",
}

func TestPackagesHaveTheirFiles(t *testing.T) {
	t.Parallel()
	need(t, "dpkg-deb", "rpm")
	list := func(line *regexp.Regexp, name string, args ...string) map[string]string {
		out, err := output(name, args...)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for _, m := range line.FindAllStringSubmatch(out, -1) {
			if m[2] != "root" || m[3] != "root" {
				t.Errorf("%s belongs to %s and %s", m[4], m[2], m[3])
			}
			files[m[4]] = m[1]
		}
		return files
	}
	deb := list(regexp.MustCompile(`(?m)^(\S{10}) (\w+)/(\w+) .* \.(/\S*?)/?$`), "dpkg-deb", "-c", debOf(t, "old"))
	rpms, err := filepath.Glob(filepath.Join(release(t, "old"), "*.rpm"))
	if err != nil || len(rpms) != 1 {
		t.Fatalf("there are %v, %v", rpms, err)
	}
	rpm := list(regexp.MustCompile(`(?m)^(\S{10}) +\d+ (\w+) +(\w+) .* (/\S+)$`), "rpm", "-qplv", rpms[0])
	own := map[string]map[string]string{
		"deb": {"/usr/share/zsh/vendor-completions/_berth": "-rw-r--r--", "/usr/share/doc/berth/copyright": "-rw-r--r--"},
		"rpm": {"/usr/share/zsh/site-functions/_berth": "-rw-r--r--", "/usr/share/licenses/berth/LICENSE": "-rw-r--r--"},
	}
	for format, files := range map[string]map[string]string{"deb": deb, "rpm": rpm} {
		for _, want := range []map[string]string{packaged, own[format]} {
			for path, mode := range want {
				if files[path] != mode {
					t.Errorf("%s: the mode of %s is %q, not %s", format, path, files[path], mode)
				}
			}
		}
		for path, mode := range files {
			known := packaged[path] != "" || own[format][path] != "" || strings.HasPrefix(path, "/usr/share/man/man1/berth-")
			if !known && !strings.HasPrefix(mode, "d") {
				t.Errorf("%s: %s is not expected", format, path)
			}
		}
	}
	if got, err := output("rpm", "-qp", "--configfiles", rpms[0]); err != nil || strings.TrimSpace(got) != "/etc/berth/berth.yaml" {
		t.Errorf("rpm: the configuration files are %q, %v", got, err)
	}
	if got, err := output("dpkg-deb", "-f", debOf(t, "old"), "Version"); err != nil || strings.TrimSpace(got) != oldPackage+"-1" {
		t.Errorf("deb: the version is %q, %v", got, err)
	}
	if err := command("dpkg", "--compare-versions", oldPackage+"-1", "lt", newPackage+"-1"); err != nil {
		t.Error("a release is not newer than its candidate", err)
	}
}

// unpacked returns a folder with the files of the archive of a release.
func unpacked(t *testing.T) string {
	t.Helper()
	dir, name := t.TempDir(), "berth_"+oldVersion+"_linux_"+runtime.GOARCH
	if err := command("tar", "-C", dir, "-xzf", filepath.Join(release(t, "old"), name+".tar.gz")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// debOf returns the Debian package of a release.
func debOf(t *testing.T, name string) string {
	t.Helper()
	debs, err := filepath.Glob(filepath.Join(release(t, name), "*_"+runtime.GOARCH+".deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("there are %v, %v", debs, err)
	}
	return debs[0]
}
