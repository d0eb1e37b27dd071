package embed

import (
	"net/http"
	"net/url"
	"os"
	"sync"
)

var proxyOnce sync.Once

// withoutProxy makes [http.ProxyFromEnvironment] return no proxy in this process. The members of
// a cluster call each other with it, and etcd has no setting for that. Go reads the environment
// once, so that the variables are back for commands that this process starts. A proxy that was
// used before stays in use.
func withoutProxy() {
	proxyOnce.Do(func() {
		const all = "NO_PROXY"
		before, set := os.LookupEnv(all)
		_ = os.Setenv(all, "*") // the name is a valid one
		_, _ = http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: "etcd.invalid"}})
		if set {
			_ = os.Setenv(all, before)
		} else {
			_ = os.Unsetenv(all)
		}
	})
}
