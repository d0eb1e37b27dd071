package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
)

// call sends a command of the protocol to the tab.
func call[P, R any](b *Browser, cmd cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	r, err := chromedp.Call(ctx, cmd, params)
	if err != nil {
		b.t.Fatalf("%s: %v", cmd.Method, err)
	}
	return r
}

// tell has the page call a function, and returns what that returns. What it
// promises is waited for.
func tell[T any](b *Browser, function string, args ...any) (T, error) {
	var texts []string
	for _, arg := range args {
		text, err := json.Marshal(arg)
		if err != nil {
			var none T
			return none, err
		}
		texts = append(texts, string(text))
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	expression := fmt.Sprintf("(%s)(%s)", function, strings.Join(texts, ", "))
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// ask is tell for what has to work.
func ask[T any](b *Browser, function string, args ...any) T {
	b.t.Helper()
	v, err := tell[T](b, function, args...)
	if err != nil {
		b.fatalf("%v, of %s", err, function)
	}
	return v
}

// fatalf fails the test and shows the page.
func (b *Browser) fatalf(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), b.glance())
}

// glance is what the page shows, for messages.
func (b *Browser) glance() string {
	const most = 3000
	text, err := tell[string](b, `() => location.href + "\n" + (document.body ? document.body.innerText : "")`)
	if err != nil {
		return fmt.Sprintf("(the page can't be read: %v)", err)
	}
	if len(text) > most {
		text = text[:most] + " …"
	}
	return "the page is " + text
}
