// Rules for the elements of a page.

const buttons = "button, input[type=submit], input[type=button], input[type=reset], input[type=image], summary, [role=button], [role=tab], [role=menuitem]";
const fields = "input:not([type=hidden], [type=submit], [type=button], [type=reset], [type=image]), select, textarea, [role=textbox], [role=searchbox], [role=combobox], [role=listbox], [role=checkbox], [role=radio], [role=switch], [role=slider], [role=spinbutton]";

Object.assign(rules, {
  *"link-name"() {
    for (const e of all("a[href], area[href], [role=link]").filter(exposed)) if (!nameOf(e)) yield [e, "the link has no name"];
  },
  *"button-name"() {
    for (const e of all(buttons).filter(exposed)) if (!nameOf(e)) yield [e, "the button has no name"];
  },
  // What is spoken to the page is what is seen on it.
  *"name-as-shown"() {
    for (const e of all("a[href], " + buttons).filter(exposed)) {
      if (!e.hasAttribute("aria-label") && !e.hasAttribute("aria-labelledby")) continue;
      const plain = text => words(text).toLowerCase().replace(/[^\p{L}\p{N} ]/gu, "");
      if (!plain(nameOf(e)).includes(plain(e.innerText || ""))) yield [e, `it shows ${quote(e.innerText)}, and is called ${quote(nameOf(e))}`];
    }
  },
  *"field-label"() {
    for (const e of all(fields).filter(exposed)) {
      if (!nameOf(e)) yield [e, "the field has no label"];
      else if (!e.labels?.length && !e.hasAttribute("aria-label") && !e.hasAttribute("aria-labelledby")) yield [e, "a title or placeholder is no label"];
    }
    for (const e of all("label[for]")) if (e.control === null) yield [e, `the label is for ${quote(e.htmlFor)}, which is no field`];
    for (const e of all("input[type=radio]").filter(exposed)) {
      const group = e.closest("fieldset, [role=radiogroup], [role=group]");
      if (!group || !nameOf(group)) yield [e, "it is not in a group that has a name"];
    }
  },
  *"image-text"() {
    for (const e of all("img, [role=img], canvas, object, input[type=image]").filter(exposed)) {
      if (e.matches("img[alt='']") || ["presentation"].includes(roleOf(e))) continue;
      if (!nameOf(e)) yield [e, "the picture has no text in its place"];
    }
    for (const e of all("svg").filter(e => exposed(e) && !e.parentElement.closest("svg"))) {
      if (!["img", "presentation", "graphics-document"].includes(e.getAttribute("role"))) yield [e, "an svg is role=img with a name, or aria-hidden=true"];
      else if (e.getAttribute("role") !== "presentation" && !nameOf(e)) yield [e, "the picture has no text in its place"];
    }
  },
  *"meter-name"() {
    for (const e of all("meter, progress, [role=meter], [role=progressbar]").filter(exposed)) if (!nameOf(e)) yield [e, "it measures nobody knows what: it has no name"];
  },
  *"frame-title"() {
    for (const e of all("iframe, frame").filter(exposed)) if (!nameOf(e)) yield [e, "the frame has no title"];
  },
  *"group-name"() {
    for (const e of all("dialog[open], [role=dialog], [role=alertdialog], [role=region], [role=tablist], [role=radiogroup], [role=toolbar], [role=tooltip], [role=tree]").filter(exposed)) {
      if (!nameOf(e)) yield [e, `a ${roleOf(e)} needs a name`];
    }
  },
  *"table-header"() {
    for (const table of all("table").filter(exposed)) {
      if (roleOf(table) === "presentation") continue;
      if (!nameOf(table)) yield [table, "the table has no caption"];
      const rows = [...table.rows].map(r => [...r.cells]);
      if (!rows.flat().some(c => c.tagName === "TH")) { yield [table, "the table has no th"]; continue }
      for (const cell of rows.flat()) {
        if (cell.tagName === "TH" && !/^(row|col|rowgroup|colgroup)$/.test(cell.scope)) yield [cell, "the header does not say what it is for: scope"];
        if (cell.tagName === "TH" && !words(cell.innerText) && !nameOf(cell)) yield [cell, "the header is empty"];
        for (const h of ids(cell, "headers")) if (!h || !table.contains(h)) yield [cell, "its headers are not in the table"];
      }
      yield* bare(table, rows);
    }
  },
  *"list-structure"() {
    for (const e of all("ul, ol, menu")) {
      if (!["list", "presentation"].includes(roleOf(e))) continue;
      for (const c of e.children) if (!c.matches("li, script, template") || !["listitem", "presentation"].includes(roleOf(c))) yield [c, "a list holds li only"];
      for (const n of e.childNodes) if (n.nodeType === Node.TEXT_NODE && words(n.data)) yield [e, "a list holds li only, no text"];
    }
    for (const e of all("li")) if (!e.parentElement.matches("ul, ol, menu") && !e.hasAttribute("role")) yield [e, "it is in no list"];
    for (const e of all("dl")) {
      for (const c of e.children) if (!c.matches("dt, dd, div, script, template")) yield [c, "a dl holds dt and dd"];
      for (const c of e.querySelectorAll(":scope > div > *")) if (!c.matches("dt, dd, script, template")) yield [c, "a div in a dl holds dt and dd"];
      for (const d of e.querySelectorAll(":scope > dd, :scope > div > dd")) {
        let before = d.previousElementSibling;
        while (before && before.tagName === "DD") before = before.previousElementSibling;
        if (before?.tagName !== "DT") yield [d, "a dd without a dt"];
      }
    }
    for (const e of all("dt, dd")) if (!e.closest("dl")) yield [e, "it is in no dl"];
  },
  *"roles"() {
    for (const e of all("[role]")) {
      const role = roleOf(e), said = words(e.getAttribute("role")).split(" ");
      for (const r of said) if (r && !roles.has(r)) yield [e, `there is no role ${quote(r)}`];
      const native = tagRoles[e.tagName] === role || e.tagName === "INPUT" || e.tagName === "OPTION";
      for (const a of native ? [] : needed[role] || []) if (!e.hasAttribute(a)) yield [e, `a ${role} needs ${a}`];
      if (!exposed(e)) continue;
      if (parents[role] && !parents[role].has(above(e))) yield [e, `a ${role} has to be in ${[...parents[role]].join(" or ")}`];
      const inside = children[role] && below(e);
      if (inside?.length && e.getAttribute("aria-busy") !== "true") {
        for (const c of inside) if (!children[role].has(roleOf(c))) yield [c, `a ${role} holds ${[...children[role]].join(", ")} only`];
      } else if (inside && e.getAttribute("aria-busy") !== "true" && !native) yield [e, `a ${role} without any ${[...children[role]].join(" or ")}`];
      if (role === "presentation" && canFocus(e)) yield [e, "it gets the focus, and says that it is nothing"];
    }
  },
  *"aria-attributes"() {
    for (const e of all("*")) {
      for (const {name, value} of e.attributes) {
        if (!name.startsWith("aria-")) continue;
        const must = attributes[name];
        if (!must) yield [e, `there is no attribute ${name}`];
        else if (must !== refs && !must.test(value)) yield [e, `${name}=${quote(value)} means nothing`];
      }
      const role = roleOf(e);
      if ((e.hasAttribute("aria-label") || e.hasAttribute("aria-labelledby")) && (nameless.has(role) || role === "") && exposed(e)) {
        yield [e, `nobody reads the label of a ${e.localName} without a role`];
      }
    }
  },
  *"references"() {
    const named = [...Object.keys(attributes).filter(a => attributes[a] === refs), "list", "form"];
    for (const a of named) {
      for (const e of all(`[${a}]`)) {
        if (a === "aria-controls" && e.getAttribute("aria-expanded") === "false") continue;
        ids(e, a).forEach((found, i) => { if (!found) missing.push([e, `${a} names ${quote(words(e.getAttribute(a)).split(" ")[i])}, which is not there`]) });
      }
    }
    yield* missing.splice(0);
  },
  *"hidden-focus"() {
    for (const e of all("[aria-hidden=true]")) {
      for (const f of [e, ...e.querySelectorAll(focusable)]) if (f.matches(focusable) && canFocus(f)) yield [f, "it gets the focus, and is hidden from those who listen"];
    }
  },
  *"nested-controls"() {
    for (const e of all("a[href], button, summary, [role]")) {
      if (!flat.has(roleOf(e))) continue;
      for (const f of e.querySelectorAll(focusable)) if (canFocus(f)) yield [f, `it is inside a ${e.localName}, where nobody finds it`];
    }
  },
});

const missing = [];

// bare are the cells of columns that have no header.
function* bare(table, rows) {
  const width = cells => cells.reduce((n, c) => n + c.colSpan, 0);
  const heads = rows.find(r => r.length > 0 && r.every(c => c.tagName === "TH" || !words(c.innerText)));
  if (!heads) return;
  const widest = rows.reduce((a, b) => width(b) > width(a) ? b : a);
  if (width(widest) > width(heads)) yield [widest.at(-1), "its column has no header"];
}

// above is the role of what an element is in, past what is nothing.
function above(e) {
  let p = e.parentElement;
  while (p && ["", "generic", "presentation"].includes(roleOf(p))) p = p.parentElement;
  return p ? roleOf(p) : "";
}

// below are the elements in one that have a role, past what is nothing.
const below = e => [...e.children].filter(exposed).flatMap(c => ["", "generic", "presentation"].includes(roleOf(c)) ? below(c) : [c]);
