// Package check reads the manifests of deploy/kubernetes as Kubernetes and kustomize do.
package check

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// object is a manifest, in the type of its kind.
type object struct {
	kind, name string
	value      any
}

// kinds are those that the manifests may use, by apiVersion and kind.
var kinds = map[string]func() any{
	"v1/Namespace":                  func() any { return new(corev1.Namespace) },
	"v1/ConfigMap":                  func() any { return new(corev1.ConfigMap) },
	"v1/Service":                    func() any { return new(corev1.Service) },
	"apps/v1/StatefulSet":           func() any { return new(appsv1.StatefulSet) },
	"apps/v1/DaemonSet":             func() any { return new(appsv1.DaemonSet) },
	"batch/v1/Job":                  func() any { return new(batchv1.Job) },
	"policy/v1/PodDisruptionBudget": func() any { return new(policyv1.PodDisruptionBudget) },
}

// decode reads the manifests of a text. A field that Kubernetes does not know is an error.
func decode(t *testing.T, from string, data []byte) []object {
	t.Helper()
	var all []object
	for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var meta struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Metadata   struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal(doc, &meta); err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		make, ok := kinds[meta.APIVersion+"/"+meta.Kind]
		if !ok {
			t.Fatalf("%s has a %s of %s, which is not in the list of kinds", from, meta.Kind, meta.APIVersion)
		}
		o := object{meta.Kind, meta.Metadata.Name, make()}
		if err := yaml.UnmarshalStrict(doc, o.value); err != nil {
			t.Errorf("%s: %s %s: %v", from, o.kind, o.name, err)
		}
		all = append(all, o)
	}
	return all
}

// manifests returns the output of kustomize, and the examples.
func manifests(t *testing.T) []object {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "..")
	if err != nil {
		t.Fatal(err)
	}
	data, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	all := decode(t, "kustomize", data)
	examples, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range examples {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, decode(t, path, data)...)
	}
	return all
}

func TestKustomizeMakesWhatKubernetesKnows(t *testing.T) {
	var got []string
	for _, o := range manifests(t) {
		got = append(got, o.kind+" "+o.name)
	}
	slices.Sort(got)
	want := []string{
		"ConfigMap berth-servers", "ConfigMap berth-sidecars", "DaemonSet berth-sidecar", "Job load", "Job load-on-node",
		"Namespace berth", "PodDisruptionBudget berth", "Service berth", "StatefulSet berth",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// podOf returns the pod that an object runs, nil for none.
func podOf(o object) *corev1.PodSpec {
	switch v := o.value.(type) {
	case *appsv1.StatefulSet:
		return &v.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return &v.Spec.Template.Spec
	case *batchv1.Job:
		return &v.Spec.Template.Spec
	}
	return nil
}

// The container "folders" is the only one that is root, and may only give folders away.
func TestContainersHaveFewRights(t *testing.T) {
	for _, o := range manifests(t) {
		pod := podOf(o)
		if pod == nil {
			continue
		}
		s := pod.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("the pod of %s %s: runAsNonRoot and seccompProfile are missing", o.kind, o.name)
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken || pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("the pod of %s %s has more than it needs", o.kind, o.name)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			name := o.kind + " " + o.name + ", container " + c.Name
			c1 := c.SecurityContext
			if c1 == nil || c1.AllowPrivilegeEscalation == nil || *c1.AllowPrivilegeEscalation || c1.ReadOnlyRootFilesystem == nil || !*c1.ReadOnlyRootFilesystem {
				t.Errorf("%s: allowPrivilegeEscalation: false and readOnlyRootFilesystem: true are missing", name)
				continue
			}
			if c1.Capabilities == nil || !slices.Equal(c1.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s keeps capabilities", name)
				continue
			}
			root := c1.RunAsNonRoot != nil && !*c1.RunAsNonRoot
			if folders := c.Name == "folders"; root != folders || !folders && len(c1.Capabilities.Add) > 0 {
				t.Errorf("%s: root: %t, capabilities: %v", name, root, c1.Capabilities.Add)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: requests and limits are missing", name)
			}
		}
	}
}

// What a pod refers to must exist: a misspelled name leaves the pod pending.
func TestPodsReferToWhatExists(t *testing.T) {
	all := manifests(t)
	maps := []string{}
	for _, o := range all {
		if o.kind == "ConfigMap" {
			maps = append(maps, o.name)
		}
	}
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		pod := podOf(o)
		if pod == nil {
			continue
		}
		volumes := []string{}
		if set, ok := o.value.(*appsv1.StatefulSet); ok {
			for _, c := range set.Spec.VolumeClaimTemplates {
				volumes = append(volumes, c.Name)
			}
		}
		for _, v := range pod.Volumes {
			volumes = append(volumes, v.Name)
			if v.Secret != nil && !strings.Contains(string(page), "create secret generic "+v.Secret.SecretName+" ") {
				t.Errorf("%s %s: README.md does not say how to make the Secret %s", o.kind, o.name, v.Secret.SecretName)
			}
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			for _, m := range c.VolumeMounts {
				if !slices.Contains(volumes, m.Name) {
					t.Errorf("%s %s: there is no volume %s", o.kind, o.name, m.Name)
				}
			}
			for _, from := range c.EnvFrom {
				if from.ConfigMapRef == nil || !slices.Contains(maps, from.ConfigMapRef.Name) {
					t.Errorf("%s %s: there is no such ConfigMap", o.kind, o.name)
				}
			}
			ports := []string{}
			for _, p := range c.Ports {
				ports = append(ports, p.Name)
			}
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
				if p != nil && p.HTTPGet != nil && !slices.Contains(ports, p.HTTPGet.Port.StrVal) {
					t.Errorf("%s %s: there is no port %s", o.kind, o.name, p.HTTPGet.Port.String())
				}
			}
		}
	}
}
