// The rule that texts can be told from what is behind them: 4.5 to 1, or 3 to 1
// for large ones.

Object.assign(rules, {
  *"colour-contrast"() {
    const judged = new Map();
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const n = texts.currentNode, e = n.parentElement;
      if (!words(n.data) || judged.has(e) || !readable(e)) continue;
      const range = document.createRange();
      range.selectNodeContents(n);
      const box = [...range.getClientRects()].find(r => r.width > 1 && r.height > 1);
      if (!box) continue;
      judged.set(e, true);
      yield* weak(e, getComputedStyle(e), box, n.data);
    }
    for (const e of all("input:not([type=hidden], [type=checkbox], [type=radio], [type=range], [type=color]), textarea, select")) {
      if (!readable(e)) continue;
      const empty = !e.value && e.placeholder;
      const style = empty ? getComputedStyle(e, "::placeholder") : getComputedStyle(e);
      if (e.value || empty) yield* weak(e, style, e.getBoundingClientRect(), e.value || e.placeholder);
    }
    for (const e of all("body *")) {
      for (const pseudo of ["::before", "::after"]) {
        const text = generated(e, pseudo);
        if (!/[\p{L}\p{N}]/u.test(text) || !readable(e)) continue;
        const style = getComputedStyle(e, pseudo);
        yield* weak(e, style, e.getBoundingClientRect(), text, rgba(style.backgroundColor));
      }
    }
  },
});

// readable tells whether the text of an element is meant to be read: it is shown,
// not cut away to be heard only, and not that of something disabled.
function readable(e) {
  if (!shown(e) || e.closest(":disabled, [aria-disabled=true], script, style, noscript, option, title, desc")) return false;
  for (let p = e; p && p !== document.body; p = p.parentElement) {
    const style = getComputedStyle(p), box = p.getBoundingClientRect();
    const clipped = style.overflow !== "visible" && style.display !== "inline" && (box.width <= 1 || box.height <= 1);
    if (clipped || /inset\(50%|inset\(100%|circle\(0/.test(style.clipPath) || style.clip.startsWith("rect(0px, 0px, 0px")) return false;
  }
  return true;
}

function* weak(e, style, box, text, own) {
  const vector = e instanceof SVGElement;
  if (vector && /none|url/.test(style.fill)) return;
  const colours = seen(e, [box.left + box.width / 2, box.top + box.height / 2], vector ? faded(rgba(style.fill), style.fillOpacity) : rgba(style.color), own);
  if (!colours) return yield [e, `${quote(text)} stands on a picture: nobody knows whether it can be read`];
  const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && +style.fontWeight >= 700;
  const is = contrast(...colours), must = large ? 3 : 4.5;
  const told = c => "#" + c.slice(0, 3).map(v => Math.round(v).toString(16).padStart(2, "0")).join("");
  if (is < must - 0.005) yield [e, `${quote(text)} is ${told(colours[0])} on ${told(colours[1])}: ${is.toFixed(2)} to 1, and has to be ${must}`];
}
