package browser

import (
	"encoding/json"
	"fmt"
)

// quoted is a text as JavaScript has it.
func quoted(text string) string {
	q, err := json.Marshal(text)
	if err != nil {
		panic(fmt.Sprintf("browser: %q: %v", text, err)) // no text fails
	}
	return string(q)
}

// one calls a function with the first element that matches; there has to be one.
func one[T any](b *Browser, selector, function string, args ...any) T {
	b.t.Helper()
	if !ask[bool](b, `s => document.querySelector(s) !== null`, selector) {
		b.fatalf("there is no %s", selector)
	}
	return ask[T](b, `(s, ...args) => (`+function+`)(document.querySelector(s), ...args)`, append([]any{selector}, args...)...)
}

// Text is an element's text as it is shown, without what is hidden.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	return one[string](b, selector, `e => e.innerText === undefined ? e.textContent : e.innerText`)
}

// Texts are those of all elements that match.
func (b *Browser) Texts(selector string) []string {
	b.t.Helper()
	return ask[[]string](b, `s => [...document.querySelectorAll(s)].map(e => e.innerText === undefined ? e.textContent : e.innerText)`, selector)
}

// Attr is an element's attribute, and whether it has it.
func (b *Browser) Attr(selector, name string) (string, bool) {
	b.t.Helper()
	v := one[*string](b, selector, `(e, name) => e.getAttribute(name)`, name)
	if v == nil {
		return "", false
	}
	return *v, true
}

// Attrs are the attributes of all elements that match, empty where one has none.
func (b *Browser) Attrs(selector, name string) []string {
	b.t.Helper()
	return ask[[]string](b, `(s, name) => [...document.querySelectorAll(s)].map(e => e.getAttribute(name) || "")`, selector, name)
}

// Count is how many elements match.
func (b *Browser) Count(selector string) int {
	b.t.Helper()
	return ask[int](b, `s => document.querySelectorAll(s).length`, selector)
}

// Shown tells whether an element can be seen.
func (b *Browser) Shown(selector string) bool {
	b.t.Helper()
	return one[bool](b, selector, `e => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})`)
}

// Computed is the value that a property of an element's style comes to. Colours
// are given as "rgb(…)" or "rgba(…)".
func (b *Browser) Computed(selector, property string) string {
	b.t.Helper()
	return one[string](b, selector, `(e, p) => getComputedStyle(e).getPropertyValue(p)`, property)
}

// Eval is the value of an expression of JavaScript, or of what it promises.
func Eval[T any](b *Browser, expression string) T {
	b.t.Helper()
	return ask[T](b, `() => (`+expression+`)`)
}

// Wider is by how many pixels the page is wider than the viewport, so that one
// would have to scroll sideways; and what reaches furthest.
func (b *Browser) Wider() (int, string) {
	b.t.Helper()
	by := ask[int](b, `() => document.documentElement.scrollWidth - document.documentElement.clientWidth`)
	if by <= 0 {
		return 0, ""
	}
	return by, ask[string](b, `() => {
  let most = 0, which = "";
  for (const e of document.body.querySelectorAll("*")) {
    const right = e.getBoundingClientRect().right;
    if (right > most) { most = right; which = e.outerHTML.slice(0, 200) }
  }
  return which }`)
}
