// audit judges the page by all rules, and returns what breaks them.
function audit() {
  const found = [];
  for (const [rule, check] of Object.entries(rules)) {
    for (const [element, message] of check()) found.push({rule, message, element: told(element)});
  }
  return found;
}

// told is an element so that it can be found again: where it is, and how it begins.
function told(e) {
  const path = [];
  for (let p = e; p && p !== document.documentElement; p = p.parentElement) {
    path.unshift(p.localName + (p.id ? "#" + p.id : [...p.classList].map(c => "." + c).join("")));
    if (p.id) break;
  }
  const text = e.outerHTML.replace(/\s+/g, " ");
  return path.join(" > ") + "  " + (text.length > 160 ? text.slice(0, 160) + "…" : text);
}
