// Colours as they come to be seen: one over the other, down to the page's ground.

const brush = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const known = new Map();

// rgba reads a colour of any notation: three of 0…255 and the opacity.
function rgba(text) {
  if (!known.has(text)) {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = "rgba(0, 0, 0, 0)";
    brush.fillStyle = text;
    brush.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
    known.set(text, [r, g, b, a / 255]);
  }
  return known.get(text);
}

const faded = ([r, g, b, a], by) => [r, g, b, a * by];

// over lays a colour over another.
function over(top, below) {
  const a = top[3] + below[3] * (1 - top[3]);
  if (a === 0) return [0, 0, 0, 0];
  return [0, 1, 2].map(i => (top[i] * top[3] + below[i] * below[3] * (1 - top[3])) / a).concat(a);
}

// ground is what the browser paints under a page that paints nothing.
function ground() {
  const dark = getComputedStyle(document.documentElement).colorScheme.split(" ").includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches;
  return dark ? [18, 18, 18, 1] : [255, 255, 255, 1];
}

function luminance([r, g, b]) {
  const linear = [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

// contrast of two colours, from 1 to 21.
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const shapes = new Set(["rect", "circle", "ellipse", "path", "polygon"]);

// painted is the colour that an element itself paints, and whether it is a picture.
function painted(e) {
  const style = getComputedStyle(e);
  if (e instanceof SVGElement && e.localName !== "svg") {
    if (!shapes.has(e.localName) || style.fill === "none") return {colour: [0, 0, 0, 0]};
    return style.fill.startsWith("url") ? {picture: true} : {colour: faded(rgba(style.fill), style.fillOpacity)};
  }
  return style.backgroundImage === "none" ? {colour: rgba(style.backgroundColor)} : {picture: true};
}

// layers are the elements under a point of an element, itself first: what lies
// there need not be its ancestors, but those are among them.
function layers(e, at) {
  const there = at && at[0] >= 0 && at[1] >= 0 ? document.elementsFromPoint(...at) : [];
  const from = there.indexOf(e);
  const all = from < 0 ? [e] : there.slice(from);
  for (let child = e, p = e.parentElement; p; child = p, p = p.parentElement) {
    if (!all.includes(p)) all.splice(all.indexOf(child) + 1, 0, p);
  }
  return all;
}

// seen is a text's colour and that of what is behind it, both as they come to be
// seen at a point. What stands on a picture has none. The text may have a colour
// of its own behind it, as generated texts do.
function seen(e, at, colour, own) {
  let back = own || [0, 0, 0, 0], text = over(colour, back);
  for (const layer of layers(e, at)) {
    const {colour: below, picture} = painted(layer);
    if (picture && back[3] < 0.999) return null;
    if (below) [back, text] = [over(back, below), over(text, below)];
    if (layer.contains(e)) {
      const by = +getComputedStyle(layer).opacity;
      [back, text] = [faded(back, by), faded(text, by)];
    }
  }
  return [over(text, ground()), over(back, ground())];
}
