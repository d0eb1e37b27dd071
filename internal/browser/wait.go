package browser

import (
	"context"
	"strconv"
	"time"
)

// lookAgain bounds the time between two polls of a page that reports nothing.
const pollEvery = 50 * time.Millisecond

// watchFor resolves to true when a condition holds, or to false after some
// seconds: a page that was left would never resolve.
const watchFor = `(seconds) => new Promise(done => {
  const holds = () => { try { return !!(condition()) } catch { return false } };
  if (holds()) return done(true);
  const look = () => { if (holds()) end(true) };
  const observer = new MutationObserver(look);
  observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const tick = setInterval(look, 50); // styles, focus and time pass without a mutation
  const late = setTimeout(() => end(false), seconds * 1000);
  function end(v) { observer.disconnect(); clearInterval(tick); clearTimeout(late); done(v) }
})`

// WaitFor waits until an expression of JavaScript is true. One that throws is
// not. What says what is waited for.
func (b *Browser) WaitFor(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		next := b.seen.next()
		var holds bool
		var err error
		if b.scripts {
			holds, err = tell[bool](b, `(seconds) => { const condition = () => (`+expression+`); return (`+watchFor+`)(seconds) }`, 5)
		} else {
			holds, err = tell[bool](b, `() => { try { return !!(`+expression+`) } catch { return false } }`)
		}
		if holds {
			return
		}
		if err == nil && b.scripts {
			next = nil // it has been watched: only the time may be over
		}
		select {
		case <-next: // an error is mostly that the page was left
		case <-time.After(pollEvery):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			if err != nil {
				b.fatalf("waited in vain: %s (%s): %v", what, expression, err)
			}
			b.fatalf("waited in vain: %s (%s)", what, expression)
		}
	}
}

// WaitText waits until an element's text contains a part.
func (b *Browser) WaitText(selector, part string) {
	b.t.Helper()
	b.WaitFor(selector+" says "+strconv.Quote(part),
		`(document.querySelector(`+quoted(selector)+`).innerText || document.querySelector(`+quoted(selector)+`).textContent).includes(`+quoted(part)+`)`)
}

// WaitCount waits until so many elements match.
func (b *Browser) WaitCount(selector string, n int) {
	b.t.Helper()
	b.WaitFor(strconv.Itoa(n)+" of "+selector, `document.querySelectorAll(`+quoted(selector)+`).length === `+strconv.Itoa(n))
}

// WaitShown waits until an element is there and can be seen.
func (b *Browser) WaitShown(selector string) {
	b.t.Helper()
	b.WaitFor(selector+" is shown", `document.querySelector(`+quoted(selector)+`).checkVisibility({checkOpacity: true, checkVisibilityCSS: true})`)
}

// WaitGone waits until nothing matches, or nothing that can be seen.
func (b *Browser) WaitGone(selector string) {
	b.t.Helper()
	b.WaitFor(selector+" is gone",
		`![...document.querySelectorAll(`+quoted(selector)+`)].some(e => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}))`)
}
