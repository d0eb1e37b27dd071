package browser

import (
	"time"

	"github.com/chromedp/cdproto/page"
)

// Go opens an address and waits until it is loaded, whatever its status. Its host
// may be asked from now on.
func (b *Browser) Go(address string) {
	b.t.Helper()
	b.Allow(address)
	b.Loads(func() {
		if r := call(b, page.Navigate, page.NavigateParams{URL: address}); r.ErrorText != "" {
			b.t.Fatalf("going to %s: %s", address, r.ErrorText)
		}
	})
}

// Reload loads the page again.
func (b *Browser) Reload() {
	b.t.Helper()
	b.Loads(func() { call(b, page.Reload, page.ReloadParams{}) })
}

// Follow clicks what leads to another page, and waits until that is loaded.
func (b *Browser) Follow(selector string) {
	b.t.Helper()
	b.Loads(func() { b.Click(selector) })
}

// Loads waits until a page is loaded because of what is done.
func (b *Browser) Loads(do func()) {
	b.t.Helper()
	before := b.seen.loaded()
	do()
	late := time.After(patience)
	for {
		next := b.seen.next()
		if b.seen.loaded() > before {
			return
		}
		select {
		case <-next:
		case <-late:
			b.fatalf("no page was loaded")
		case <-b.ctx.Done():
			b.t.Fatalf("the browser is gone: %v", b.ctx.Err())
		}
	}
}

// Status is that of the answer which the page came with.
func (b *Browser) Status() int {
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	return b.seen.status
}

// URL is the page's address as it is now.
func (b *Browser) URL() string {
	b.t.Helper()
	return ask[string](b, `() => location.href`)
}
