//go:build linux

package docs_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// clientPages are for clients of a sidecar, which are neither root nor its user. So they have the roles view
// and claim only, and over TCP no identity. In berth dev, everyone may do everything.
var clientPages = []string{
	"how-to/claim-over-http.md", "how-to/api-quota.md", "how-to/connection-pool.md", "how-to/containers.md", "how-to/slurm.md",
}

func TestPagesForClientsDoWhatTheySayOnASidecar(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("it runs other processes, as another user")
	}
	t.Parallel()
	built := build(t)
	if err := os.Chmod(built, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		if !slices.Contains(clientPages, p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			r := newReader(t, built)
			r.serve(t, "bin/berth dev")
			r.env = append(r.env, "BERTH_ENDPOINTS="+r.etcd) // the socket in the folder is for the user of berth dev
			r.serve(t, "mkdir run && exec bin/berth sidecar --host clients --socket $PWD/run/berth.sock --socket-mode 0666 --state-dir sidecar")
			ready := "until bin/berth ready --sidecar http://127.0.0.1:7420; do sleep 0.1; done"
			r.run(t, p, block{text: ready}, r.command(t.Context(), ready))
			// Another user may not be able to read the checkout.
			clients := filepath.Join(r.dir, "clients")
			if err := os.Remove(clients); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(clients, os.DirFS("../clients")); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(r.dir, 0o777|os.ModeSticky); err != nil {
				t.Fatal(err)
			}
			r.user = &syscall.Credential{Uid: 65534, Gid: 65534}
			r.follow(t, p)
		})
	}
}
