package lograte

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

func TestLinesOfAKindAreBoundedAndTheirNumberIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Info})
		var l Limit
		line := func(kind string) { l.Log(log, hclog.Info, kind, "refused "+kind) }
		for range 1000 {
			line("401")
		}
		line("403")
		l.Log(log, hclog.Debug, "403", "not logged at all")
		time.Sleep(Window)
		synctest.Wait()
		got := out.String()
		for what, want := range map[string]int{"refused 401": Most, "refused 403": 1, fmt.Sprintf("kind=401 suppressed=%d within=%s", 1000-Most, Window): 1, "suppressed=": 1, "not logged": 0} {
			if n := strings.Count(got, what); n != want {
				t.Errorf("%q is in the log %d times, want %d:\n%s", what, n, want, got)
			}
		}
		out.Reset()
		line("401") // in the next window
		for range Most + 5 {
			line("403")
		}
		l.Flush()
		l.Flush()
		time.Sleep(2 * Window)
		synctest.Wait()
		for what, want := range map[string]int{"refused 401": 1, "refused 403": Most, "suppressed=5": 1, "suppressed=": 1} {
			if n := strings.Count(out.String(), what); n != want {
				t.Errorf("%q is in the log %d times, want %d:\n%s", what, n, want, out.String())
			}
		}
	})
}
