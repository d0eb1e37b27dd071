package browser

import (
	"strings"

	"github.com/chromedp/cdproto/input"
)

// hit finds the middle of an element, scrolled into view, and tells whether a
// click there would reach it.
const hit = `e => {
  if (!e) return null;
  e.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  const box = [...e.getClientRects()].find(r => r.width > 0 && r.height > 0);
  if (!box || e.disabled) return null;
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const top = document.elementFromPoint(x, y);
  return top && (e === top || e.contains(top) || [...(e.labels || [])].some(l => l.contains(top))) ? [x, y] : null;
}`

// listen notes whether the next press of the mouse goes to an element.
const listen = `e => {
  window[Symbol.for("pressed")] = null;
  addEventListener("mousedown", event => {
    window[Symbol.for("pressed")] = e.contains(event.target) || [...(e.labels || [])].some(l => l.contains(event.target));
  }, {capture: true, once: true});
  return true }`

// Click clicks the middle of an element, as soon as it is there and nothing lies
// over it. If it moves away under the mouse, it is tried again.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	const tries = 10
	for range tries {
		b.WaitFor(selector+" can be clicked", `(`+hit+`)(document.querySelector(`+quoted(selector)+`))`)
		one[bool](b, selector, listen)
		at := one[[]float64](b, selector, hit)
		if at == nil {
			continue
		}
		b.mouse(input.DispatchMouseEventTypeMouseMoved, at)
		b.mouse(input.DispatchMouseEventTypeMousePressed, at)
		if !b.scripts || ask[bool](b, `() => window[Symbol.for("pressed")] === true`) {
			b.mouse(input.DispatchMouseEventTypeMouseReleased, at)
			return
		}
		// Elsewhere the button comes up without a click.
		b.mouse(input.DispatchMouseEventTypeMouseMoved, []float64{0, 0})
		b.mouse(input.DispatchMouseEventTypeMouseReleased, []float64{0, 0})
	}
	b.fatalf("%s does not stand still", selector)
}

func (b *Browser) mouse(what input.DispatchMouseEventType, at []float64) {
	b.t.Helper()
	p := input.DispatchMouseEventParams{Type: what, X: at[0], Y: at[1]}
	if what != input.DispatchMouseEventTypeMouseMoved {
		p.Button, p.ClickCount = input.MouseButtonLeft, 1
	}
	if what == input.DispatchMouseEventTypeMousePressed {
		p.Buttons = 1
	}
	call(b, input.DispatchMouseEvent, p)
}

// Type puts a text into a field, in place of what is there.
func (b *Browser) Type(selector, text string) {
	b.t.Helper()
	b.Click(selector)
	one[bool](b, selector, `e => { e.select(); return true }`)
	if text == "" {
		b.Key("Delete")
		return
	}
	call(b, input.InsertText, input.InsertTextParams{Text: text})
}

// Choose chooses an option of a select by its value, and tells its listeners.
func (b *Browser) Choose(selector, value string) {
	b.t.Helper()
	if !one[bool](b, selector, `(e, v) => {
  e.value = v;
  e.dispatchEvent(new Event("input", {bubbles: true}));
  e.dispatchEvent(new Event("change", {bubbles: true}));
  return e.value === v }`, value) {
		b.fatalf("%s has no option %q", selector, value)
	}
}

// keys that are more than a text: their code, and the text that they write.
var keys = map[string]struct {
	code    string
	virtual int64
	text    string
}{
	"Tab": {"Tab", 9, ""}, "Enter": {"Enter", 13, "\r"}, "Escape": {"Escape", 27, ""}, " ": {"Space", 32, " "},
	"Delete": {"Delete", 46, ""}, "Home": {"Home", 36, ""}, "End": {"End", 35, ""},
	"ArrowUp": {"ArrowUp", 38, ""}, "ArrowDown": {"ArrowDown", 40, ""},
	"ArrowLeft": {"ArrowLeft", 37, ""}, "ArrowRight": {"ArrowRight", 39, ""},
}

// Key presses a key: Tab, Enter, Escape, " ", Delete, Home, End or an arrow,
// as "ArrowUp". "Shift+Tab" goes back.
func (b *Browser) Key(name string) {
	b.t.Helper()
	var modifiers int64
	plain, shift := strings.CutPrefix(name, "Shift+")
	if shift {
		modifiers = 8
	}
	k, ok := keys[plain]
	if !ok {
		b.t.Fatalf("Key(%q): there is no such key", name)
	}
	p := input.DispatchKeyEventParams{
		Type: input.DispatchKeyEventTypeRawKeyDown, Key: plain, Code: k.code,
		WindowsVirtualKeyCode: k.virtual, NativeVirtualKeyCode: k.virtual, Modifiers: modifiers,
	}
	if k.text != "" {
		p.Type, p.Text, p.UnmodifiedText = input.DispatchKeyEventTypeKeyDown, k.text, k.text
	}
	call(b, input.DispatchKeyEvent, p)
	p.Type, p.Text, p.UnmodifiedText = input.DispatchKeyEventTypeKeyUp, "", ""
	call(b, input.DispatchKeyEvent, p)
}

// Focused is what has the focus.
type Focused struct {
	// At is the element's place in the page: later ones have larger numbers.
	At int
	// Tag is the element's name in small letters; "body" is nothing in particular.
	Tag string
	ID  string
	// Name is the accessible name of the element, as the browser computes it.
	Name string
	// Href is the address of a link, as it is written.
	Href string
	// Marked tells whether it can be seen that it has the focus: it looks
	// otherwise than without.
	Marked bool
}

// Focus returns what has the focus.
func (b *Browser) Focus() Focused {
	b.t.Helper()
	return ask[Focused](b, `() => {
  const e = document.activeElement || document.body;
  const look = () => { const s = getComputedStyle(e);
    return [s.outlineStyle === "none" ? "" : s.outline, s.boxShadow, s.backgroundColor, s.color, s.borderColor, s.textDecoration].join() };
  const with_ = look();
  const sheet = e === document.body ? with_ : unfocused(e, look);
  return {At: [...document.querySelectorAll("*")].indexOf(e), Tag: e.localName, ID: e.id, Name: e.computedName, Href: e.getAttribute("href") || "", Marked: with_ !== sheet};
  function unfocused(e, look) {
    const x = scrollX, y = scrollY;
    e.blur();
    const without = look();
    e.focus({preventScroll: true, focusVisible: true});
    scrollTo(x, y);
    return without;
  } }`)
}

// Tour presses Tab from the beginning of the page until nothing has the focus any
// more, and returns what has had it.
func (b *Browser) Tour() []Focused {
	b.t.Helper()
	const most = 500
	ask[bool](b, `() => {
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
  scrollTo(0, 0);
  return true }`)
	var all []Focused
	for range most {
		b.Key("Tab")
		f := b.Focus()
		if f.Tag == "body" || f.Tag == "html" || len(all) > 0 && f.At == all[0].At {
			return all
		}
		all = append(all, f)
	}
	b.fatalf("the focus goes round for ever: %v", all)
	return nil
}
