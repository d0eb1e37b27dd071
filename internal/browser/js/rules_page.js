// Rules for the page as a whole. A rule yields what breaks it: the element, and
// what is wrong with it.

const all = selector => [...document.querySelectorAll(selector)];
const quote = text => JSON.stringify(words(text).slice(0, 60));
const language = /^[a-z]{2,3}(-[a-z0-9]{2,8})*$/i;
const focusable = "a[href], area[href], button, input:not([type=hidden]), select, textarea, summary, iframe, [tabindex], [contenteditable]";
const canFocus = e => e.tabIndex >= 0 && !e.matches(":disabled") && e.checkVisibility({checkVisibilityCSS: true});

const rules = {
  *"document-language"() {
    const root = document.documentElement;
    if (!words(root.lang)) yield [root, "the page does not say its language: <html lang>"];
    for (const e of all("[lang]")) if (!language.test(e.lang)) yield [e, `${quote(e.lang)} is no language`];
  },
  *"document-title"() {
    if (!words(document.title)) yield [document.documentElement, "the page has no title"];
  },
  *"document-type"() {
    if (document.compatMode !== "CSS1Compat") yield [document.documentElement, "the page has no <!doctype html>"];
  },
  *"meta-viewport"() {
    const meta = document.querySelector("meta[name=viewport]");
    if (!meta) return yield [document.documentElement, "the page has no <meta name=viewport>, and is tiny on phones"];
    const said = Object.fromEntries(meta.content.toLowerCase().split(/[,;]/).map(p => p.split("=").map(words)));
    if (["no", "0"].includes(said["user-scalable"])) yield [meta, "nobody may zoom"];
    if (+said["maximum-scale"] < 5) yield [meta, "nobody may zoom to five times the size"];
  },
  *"meta-refresh"() {
    for (const e of all("meta[http-equiv=refresh i]")) yield [e, "the page goes away by itself"];
  },
  *"one-h1"() {
    const firsts = headings().filter(([, level]) => level === 1);
    if (firsts.length === 0) yield [document.body, "there is no h1"];
    for (const [e] of firsts.slice(1)) yield [e, "there is another h1 before this one"];
  },
  *"heading-order"() {
    let before = 0;
    for (const [e, level] of headings()) {
      if (level > before + 1 && before > 0) yield [e, `a heading of level ${level} comes after one of ${before}`];
      if (before === 0 && level !== 1) yield [e, `the first heading is of level ${level}`];
      before = level;
    }
  },
  *"empty-heading"() {
    for (const [e] of headings()) if (!nameOf(e)) yield [e, "the heading is empty"];
  },
  *"landmarks"() {
    const byRole = Object.groupBy(all("*").filter(exposed).filter(e => landmarks.has(roleOf(e))), roleOf);
    const count = role => (byRole[role] || []).length;
    if (count("main") !== 1) yield [document.body, `there are ${count("main")} main parts`];
    if (count("navigation") === 0) yield [document.body, "there is no nav"];
    for (const role of ["banner", "contentinfo"]) {
      for (const e of (byRole[role] || []).slice(1)) yield [e, `there is another ${role} before this one`];
    }
    for (const e of ["main", "banner", "contentinfo"].flatMap(r => byRole[r] || [])) {
      if (e.parentElement.closest("main, nav, aside, [role=main], [role=navigation]")) yield [e, "it is inside another part of the page"];
    }
    for (const [role, those] of Object.entries(byRole)) {
      const names = new Set();
      for (const e of those) {
        if (names.has(nameOf(e))) yield [e, `another ${role} has the same name ${quote(nameOf(e))}`];
        names.add(nameOf(e));
      }
    }
  },
  // Who goes from part to part must not miss anything.
  *"all-in-landmarks"() {
    const elsewhere = e => landmarks.has(roleOf(e)) || e.matches("dialog, [role=dialog], [role=alertdialog], [role=alert], [role=status], [role=log], [aria-live]") ||
      e.matches("a[href^='#']") && e === firstStop() || e.matches("script, style, template, noscript");
    const holds = e => all2(e).some(n => n.nodeType === Node.TEXT_NODE && words(n.data)) || e.matches("img, svg, input, select, textarea, button, meter, progress");
    const walk = function* (e) {
      if (elsewhere(e) || !exposed(e)) return;
      if (holds(e)) yield [e, "it is in no part of the page: main, nav, header, footer, aside, or a region with a name"];
      else for (const c of e.children) yield* walk(c);
    };
    yield* walk(document.body);
  },
  *"skip-link"() {
    const first = firstStop();
    if (first && !(first.matches("a[href^='#']") && first.hash.length > 1)) yield [first, "the first thing that gets the focus is no link to the main part"];
  },
  *"link-target"() {
    for (const e of all("a[href^='#']")) {
      const id = decodeURIComponent(e.getAttribute("href").slice(1));
      if (id && id !== "top" && !document.getElementById(id)) yield [e, `there is no #${id} to go to`];
    }
  },
  *"unique-ids"() {
    const ids = new Set();
    for (const e of all("[id]")) {
      if (ids.has(e.id)) yield [e, `another element has the id ${quote(e.id)}`];
      if (!e.id || /\s/.test(e.id)) yield [e, `${quote(e.id)} can be no id`];
      ids.add(e.id);
    }
  },
  *"tab-order"() {
    for (const e of all("[tabindex]")) if (e.tabIndex > 0) yield [e, `tabindex ${e.tabIndex} takes it out of the order of the page`];
  },
  *"scrollable-focus"() {
    for (const e of all("body *")) {
      const style = getComputedStyle(e);
      const over = (inside, outside, how) => inside > outside + 12 && /auto|scroll/.test(how);
      const scrolls = over(e.scrollWidth, e.clientWidth, style.overflowX) || over(e.scrollHeight, e.clientHeight, style.overflowY);
      if (!scrolls || !shown(e) || e.matches("select, textarea")) continue;
      if (e.tabIndex < 0 && ![...e.querySelectorAll(focusable)].some(canFocus)) yield [e, "it scrolls, and the keyboard can't reach it"];
    }
  },
  // A finger or an unsteady hand needs 24 pixels, or as much room around.
  *"target-size"() {
    const targets = all("a[href], button, input:not([type=hidden]), select, textarea, summary, [role=button], [role=link], [role=tab], [role=checkbox], [role=switch], [role=radio], [role=menuitem], [role=option], [tabindex='0'][role=treeitem]")
      .filter(e => shown(e) && !e.matches(":disabled"))
      .map(e => ({e, box: [...e.getClientRects()].sort((a, b) => b.width * b.height - a.width * a.height)[0]}))
      .filter(({box}) => box && box.width > 1 && box.height > 1 && box.right > 0 && box.bottom > 0);
    const small = ({box}) => box.width < 23.9 || box.height < 23.9;
    const middle = ({box}) => [box.left + box.width / 2, box.top + box.height / 2];
    for (const t of targets.filter(small)) {
      if (inText(t.e)) continue;
      const [x, y] = middle(t);
      const near = targets.find(o => o.e !== t.e && !o.e.contains(t.e) && !t.e.contains(o.e) && (toBox(x, y, o.box) < 12 ||
        small(o) && Math.hypot(x - middle(o)[0], y - middle(o)[1]) < 24));
      if (near) yield [t.e, `it is ${Math.round(t.box.width)} by ${Math.round(t.box.height)} pixels, and ${near.e.localName} ${quote(nameOf(near.e))} is too near`];
    }
  },
  // A link that only its colour tells from the text around it is none to many.
  *"link-in-text"() {
    for (const e of all("a[href]")) {
      if (!shown(e) || !inText(e)) continue;
      const style = getComputedStyle(e), around = getComputedStyle(e.parentElement);
      const marked = style.textDecorationLine !== "none" || style.fontWeight !== around.fontWeight || style.fontStyle !== around.fontStyle ||
        style.borderBottomStyle !== "none" || style.backgroundColor !== "rgba(0, 0, 0, 0)";
      if (!marked && contrast(rgba(style.color), rgba(around.color)) < 3) yield [e, "nothing but a colour tells the link from the text around it"];
    }
  },
};

const all2 = e => [...e.childNodes];

// headings and their levels, in the order in which they are read.
const headings = () => all("h1, h2, h3, h4, h5, h6, [role=heading]").filter(e => exposed(e) && roleOf(e) === "heading")
  .map(e => [e, +e.getAttribute("aria-level") || +e.tagName[1] || 2]);

// firstStop is what gets the focus first.
const firstStop = () => all(focusable).find(canFocus);

// inText tells whether an element stands in a line of text that goes on around it.
function inText(e) {
  if (!getComputedStyle(e).display.startsWith("inline")) return false;
  let block = e.parentElement;
  while (block && getComputedStyle(block).display === "inline") block = block.parentElement;
  if (!block) return false;
  const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const n = texts.currentNode;
    if (/\p{L}|\p{N}/u.test(n.data) && !n.parentElement.closest("a[href], button, select, label, summary, script, style, svg") && !e.contains(n) && shown(n.parentElement)) return true;
  }
  return false;
}

const toBox = (x, y, box) => Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
