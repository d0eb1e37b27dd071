// What an element is to those who listen to the page: its role, and the name by
// which it is called. The names follow "Accessible Name and Description
// Computation", as far as pages without widgets of their own need it.

const words = text => (text || "").replace(/\s+/g, " ").trim();

// shown tells whether somebody who looks sees it, wherever the page is scrolled to.
const shown = e => e.checkVisibility({checkVisibilityCSS: true, checkOpacity: true});

// exposed tells whether somebody who listens is told of it.
const exposed = e => e.checkVisibility({checkVisibilityCSS: true}) && !e.closest("[aria-hidden=true], [inert]");

const landmarkTags = {MAIN: "main", NAV: "navigation", ASIDE: "complementary", SEARCH: "search"};

// tagRoles are the roles that elements have by themselves.
const tagRoles = {
  BUTTON: "button", SUMMARY: "button", H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading",
  UL: "list", OL: "list", MENU: "list", LI: "listitem", TABLE: "table", CAPTION: "caption", THEAD: "rowgroup", TBODY: "rowgroup",
  TFOOT: "rowgroup", TR: "row", TD: "cell", SELECT: "combobox", TEXTAREA: "textbox", OPTION: "option", PROGRESS: "progressbar",
  METER: "meter", DIALOG: "dialog", FIELDSET: "group", DETAILS: "group", HR: "separator", OUTPUT: "status", ARTICLE: "article",
  FIGURE: "figure", P: "paragraph", CODE: "code", STRONG: "strong", EM: "emphasis", SUB: "subscript", SUP: "superscript",
  DIV: "generic", SPAN: "generic", DEL: "deletion", INS: "insertion", ...landmarkTags,
};

const inputRoles = {
  button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio", range: "slider",
  number: "spinbutton", search: "searchbox", hidden: "",
};

const cut = "article, aside, main, nav, section, [role=article], [role=complementary], [role=main], [role=navigation], [role=region]";

// roleOf is the role that an element has, "" if none.
function roleOf(e) {
  const said = words(e.getAttribute("role")).split(" ")[0];
  if (said) return said === "none" ? "presentation" : said;
  const named = e.hasAttribute("aria-label") || e.hasAttribute("aria-labelledby");
  switch (e.tagName) {
  case "A": case "AREA": return e.hasAttribute("href") ? "link" : "generic";
  case "INPUT": return inputRoles[e.type] ?? "textbox";
  case "IMG": return e.getAttribute("alt") === "" && !named ? "presentation" : "img";
  case "TH": return e.scope === "row" || e.scope === "rowgroup" ? "rowheader" : "columnheader";
  case "HEADER": return e.parentElement.closest(cut) ? "generic" : "banner";
  case "FOOTER": return e.parentElement.closest(cut) ? "generic" : "contentinfo";
  case "SECTION": return named ? "region" : "generic";
  case "FORM": return named ? "form" : "";
  case "svg": return "graphics";
  }
  return tagRoles[e.tagName] || "";
}

const fromContent = new Set(("button cell checkbox columnheader gridcell heading link menuitem menuitemcheckbox menuitemradio option " +
  "radio row rowheader switch tab tooltip treeitem").split(" "));

// nameOf is the name of an element, "" if it has none.
const nameOf = e => words(compute(e, {seen: new Set(), referred: false, inside: false}));

function compute(e, way) {
  if (way.seen.has(e)) return "";
  way.seen.add(e);
  const hiddenHere = !e.checkVisibility({checkVisibilityCSS: true}) || e.closest("[aria-hidden=true]");
  if (hiddenHere && !way.referred) return "";
  if (e.hasAttribute("aria-labelledby") && !way.referred) {
    const named = ids(e, "aria-labelledby").map(i => i && compute(i, {seen: new Set(), referred: true, inside: true})).filter(Boolean).join(" ");
    if (words(named)) return named;
  }
  const label = words(e.getAttribute("aria-label"));
  if (label) return label;
  const own = nativeName(e, way);
  if (own !== null && words(own)) return own;
  if (own === null && (way.inside || fromContent.has(roleOf(e)))) {
    const content = contentOf(e, way);
    if (words(content)) return content;
  }
  if (e.title) return e.title;
  return !way.inside && e.placeholder || "";
}

// ids are the elements that an attribute refers to; null for those that are not.
const ids = (e, attribute) => words(e.getAttribute(attribute)).split(" ").filter(Boolean).map(i => document.getElementById(i));

const inner = (e, way) => e ? compute(e, {...way, inside: true}) : "";

// nativeName is the name that HTML gives; null where the content tells.
function nativeName(e, way) {
  const child = tag => [...e.children].find(c => c.localName === tag);
  switch (e.tagName) {
  case "IMG": case "AREA": return e.alt;
  case "svg": return child("title")?.textContent || "";
  case "TABLE": return inner(child("caption"), way);
  case "FIELDSET": return inner(child("legend"), way);
  case "FIGURE": return inner(child("figcaption"), way);
  case "INPUT":
    if (["submit", "reset", "button"].includes(e.type)) return e.value || {submit: "Submit", reset: "Reset"}[e.type] || labels(e, way);
    if (e.type === "image") return e.alt || e.title || "Submit";
    return way.inside ? e.value : labels(e, way);
  case "SELECT": return way.inside ? [...e.selectedOptions].map(o => o.text).join(" ") : labels(e, way);
  case "TEXTAREA": return way.inside ? e.value : labels(e, way);
  case "METER": case "PROGRESS": case "OUTPUT": return labels(e, way);
  case "IFRAME": return e.title;
  }
  return null;
}

const labels = (e, way) => [...(e.labels || [])].map(l => inner(l, way)).join(" ");

// contentOf is what is inside, as it is read out.
function contentOf(e, way) {
  let all = generated(e, "::before");
  for (const n of e.childNodes) {
    if (n.nodeType === Node.TEXT_NODE) all += n.data;
    else if (n.nodeType === Node.ELEMENT_NODE) {
      const apart = getComputedStyle(n).display !== "inline" ? " " : "";
      all += apart + compute(n, {...way, inside: true}) + apart;
    }
  }
  return all + generated(e, "::after");
}

// generated is the text that a style puts before or after an element. What it says
// behind a slash is for listeners.
function generated(e, pseudo) {
  const content = getComputedStyle(e, pseudo).content;
  const spoken = content.includes(" / ") ? content.slice(content.indexOf(" / ")) : content;
  return [...spoken.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map(m => m[1]).join("");
}
