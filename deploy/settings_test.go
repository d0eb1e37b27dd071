package deploy_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berthhq/berth/config"
)

// process is a berth process of a manifest or of the compose file.
type process struct {
	name string
	args []string
	env  map[string]string
}

// buildBerth builds the binary into a folder.
func buildBerth(t *testing.T, dir string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it runs other processes: there is nothing to see for the race detector")
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "berth"), "../cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// folder replaces the folders of certificates in containers by those in dir.
func folder(dir, path string) string {
	return strings.NewReplacer("/http-certs", dir+"/http-certs", "/certs", dir+"/certs").Replace(path)
}

// checkAuthorities checks that a certificate of an HTTP client is one to the HTTP servers among some
// processes, and none to the etcd of any of them.
func checkAuthorities(t *testing.T, dir, client string, all []process) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(client+".crt", client+".key")
	if err != nil {
		t.Fatal(err)
	}
	signedBy := func(file string) bool {
		text, err := os.ReadFile(folder(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err == nil
	}
	servers := 0
	for _, p := range all {
		if ca := p.env["BERTH_CLIENT_CA"]; ca != "" {
			servers++
			if !signedBy(ca) {
				t.Errorf("%s does not accept the certificate of %s over HTTP", p.name, filepath.Base(client))
			}
		}
		if ca := p.env["BERTH_CACERT"]; ca != "" && signedBy(ca) {
			t.Errorf("the etcd of %s accepts the certificate of %s, with which it may be written", p.name, filepath.Base(client))
		}
	}
	if servers == 0 {
		t.Error("no process accepts certificates over HTTP")
	}
}

// checkSettings has berth read the settings of processes, with the files of dir/certs for /certs. An
// invalid setting that is added keeps it from starting, and must be the only one.
func checkSettings(t *testing.T, dir string, all []process) {
	t.Helper()
	var known []string
	for _, f := range config.Fields() {
		known = append(known, f.Env())
	}
	only := regexp.MustCompile(`^berth: settings: log_level \(BERTH_LOG_LEVEL\): [^\n]*\n$`)
	for _, p := range all {
		cmd := exec.Command(filepath.Join(dir, "berth"), p.args...)
		cmd.Env = []string{"PATH=" + dir, "BERTH_LOG_LEVEL=none"}
		for name, value := range p.env {
			if !slices.Contains(known, name) {
				t.Errorf("%s: there is no setting %s", p.name, name)
			}
			cmd.Env = append(cmd.Env, name+"="+folder(dir, value))
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err == nil || !only.MatchString(stderr.String()) {
			t.Errorf("%s: berth %q: %v, and the error is not that of log_level alone:\n%s", p.name, p.args, err, &stderr)
		}
	}
}

// decodeYAML reads the documents of a file into values of a type.
func decodeYAML[T any](t *testing.T, path string) []T {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var v T
		if err := yaml.Unmarshal(doc, &v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, v)
	}
	return all
}

func TestTheComposeFileHasSettingsThatBerthKnows(t *testing.T) {
	dir := t.TempDir()
	buildBerth(t, dir)
	type composeFile struct {
		Services map[string]struct {
			Image       string
			Command     []string
			Environment map[string]string
			Volumes     []string
		}
	}
	file := decodeYAML[composeFile](t, "compose/compose.yaml")[0]
	var all []process
	for name, s := range file.Services {
		if len(s.Command) > 0 && s.Command[0] == "certs" {
			makeCertificates(t, dir, volumeAt(t, s.Volumes, ":/certs"), s.Command)
			continue
		}
		if strings.Contains(s.Image, "berth:") {
			all = append(all, process{name, s.Command, s.Environment})
		}
	}
	if len(all) != 6 {
		t.Errorf("there are %d processes of berth, want 3 servers, 2 workers and a job", len(all))
	}
	checkSettings(t, dir, all)
	// Prometheus has no other folder of certificates, and so no key of another process for etcd.
	volume := volumeAt(t, file.Services["prometheus"].Volumes, ":/certs:ro")
	if volume == "certs" {
		t.Error("prometheus can read the keys that etcd accepts")
	}
	checkAuthorities(t, dir, filepath.Join(dir, volume, "prometheus"), all)
}

// volumeAt returns the volume that is mounted at a path.
func volumeAt(t *testing.T, volumes []string, at string) string {
	t.Helper()
	for _, v := range volumes {
		if name, ok := strings.CutSuffix(v, at); ok {
			return name
		}
	}
	t.Fatalf("no volume of %v is mounted at %s", volumes, at)
	return ""
}

// makeCertificates makes the certificates of a command of the compose file, which writes them to a
// volume.
func makeCertificates(t *testing.T, dir, volume string, command []string) {
	t.Helper()
	command = slices.Clone(command)
	for i, word := range command {
		command[i] = strings.NewReplacer("=/certs", "="+dir+"/"+volume, "=/var/lib/berth", "="+dir).Replace(word)
	}
	if out, err := exec.Command(filepath.Join(dir, "berth"), command...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
}

// manifest is what a manifest of Kubernetes says about processes of berth.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Spec struct {
				InitContainers []container `yaml:"initContainers"`
				Containers     []container
			}
		}
	}
}

type container struct {
	Image   string
	Args    []string
	EnvFrom []struct {
		ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
	} `yaml:"envFrom"`
	Env []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	ReadinessProbe probe `yaml:"readinessProbe"`
	StartupProbe   probe `yaml:"startupProbe"`
}

// probe is a command that tells how a container is.
type probe struct {
	Exec struct{ Command []string }
}

// environment returns the variables of a container, whose pod is the first one of its set.
func (c container) environment(maps map[string]map[string]string) map[string]string {
	all := map[string]string{}
	for _, from := range c.EnvFrom {
		for name, value := range maps[from.ConfigMapRef.Name] {
			all[name] = value
		}
	}
	for _, v := range c.Env {
		switch v.ValueFrom.FieldRef.FieldPath {
		case "metadata.name":
			v.Value = "berth-0"
		case "spec.nodeName":
			v.Value = "node-1.example.com"
		}
		all[v.Name] = regexp.MustCompile(`\$\((\w+)\)`).ReplaceAllStringFunc(v.Value, func(ref string) string { return all[ref[2:len(ref)-1]] })
	}
	return all
}

func TestTheManifestsHaveSettingsThatBerthKnows(t *testing.T) {
	dir := t.TempDir()
	buildBerth(t, dir)
	page, err := os.ReadFile("kubernetes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	sh := exec.Command("sh", "-ec", block)
	sh.Dir, sh.Env = dir, []string{"PATH=" + dir}
	if sh.Path, err = exec.LookPath("sh"); err != nil {
		t.Fatal(err)
	}
	if out, err := sh.CombinedOutput(); err != nil || !strings.HasPrefix(block, "berth certs make") {
		t.Fatalf("%s: %v\n%s", block, err, out)
	}
	var all []process
	maps := map[string]map[string]string{}
	for _, pattern := range []string{"kubernetes/settings.yaml", "kubernetes/s*s.yaml", "kubernetes/examples/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			for _, m := range decodeYAML[manifest](t, path) {
				maps[m.Metadata.Name] = m.Data
				pod := m.Spec.Template.Spec
				for i, c := range slices.Concat(pod.InitContainers, pod.Containers) {
					if !strings.HasPrefix(c.Image, "berth:") {
						continue
					}
					env := c.environment(maps)
					all = append(all, process{fmt.Sprintf("%s, container %d", path, i), c.Args, env})
					for _, probe := range [][]string{c.ReadinessProbe.Exec.Command, c.StartupProbe.Exec.Command} {
						if len(probe) > 0 {
							all = append(all, process{path + ", probe", probe[1:], env})
						}
					}
				}
			}
		}
	}
	if len(all) < 5 {
		t.Errorf("there are only %d processes of berth", len(all))
	}
	checkSettings(t, dir, all)
	client := filepath.Join(dir, "certs", "prometheus")
	if _, err := os.Stat(client + ".crt"); err != nil {
		client = filepath.Join(dir, "http-certs", "prometheus")
	}
	checkAuthorities(t, dir, client, all)
}
