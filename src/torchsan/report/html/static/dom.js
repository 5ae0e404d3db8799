// Elements, numbers as people read them, and the parts of the page that are unpacked when somebody looks.
// Whatever comes from the recording is put into the page as text: there is no markup made from strings here.

const index = JSON.parse(document.getElementById("index").textContent);
const unpacked = new Map();

function part(name) {
  if (!unpacked.has(name)) unpacked.set(name, unpack(name));
  return unpacked.get(name);
}

async function unpack(name) {
  const holder = document.getElementById(`part-${name}`);
  const bytes = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// An element that fills itself once its part is there.
function later(promise, render) {
  const holder = h("div", { class: "later" }, h("p", { class: "dim" }, "…"));
  promise.then((data) => { const content = render(data); holder.replaceChildren(); append(holder, [content]); }).catch((error) => {
    holder.replaceChildren(h("p", { class: "dim" }, `cannot be shown: ${error.message}`));
  });
  return holder;
}

const plain = /^(class|id|title|role|type|value|placeholder|tabindex|scope|colspan|for|name|aria-[a-z]+|data-[a-z]+)$/;

function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (key === "style") for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else if (key === "href" && String(value).startsWith("#")) element.setAttribute("href", value);
    else if (plain.test(key)) element.setAttribute(key, value === true ? "" : value);
    else throw new Error(`no attribute ${key}`);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

const drawn = /^(class|d|x|y|x1|x2|y1|y2|width|height|viewBox|role|aria-[a-z]+|tabindex|text-anchor|opacity|preserveAspectRatio)$/;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (drawn.test(key)) element.setAttribute(key, value);
    else throw new Error(`no attribute ${key}`);
  }
  append(element, children);
  return element;
}

const link = (route, ...content) => h("a", { href: route }, content);
const to = (...segments) => "#" + segments.map((s) => encodeURIComponent(s)).join("/");
const code = (...content) => h("code", {}, content);

function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

function bytes(n) {
  if (n === null || n === undefined) return "";
  for (const unit of ["B", "KiB", "MiB"]) {
    if (Math.abs(n) < 1024) return unit === "B" ? `${Math.round(n)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} GiB`;
}

function seconds(s) {
  if (s === null || s === undefined) return "";
  if (s < 1e-3) return `${(s * 1e6).toPrecision(3)} µs`;
  return s < 1 ? `${(s * 1e3).toPrecision(3)} ms` : `${s.toPrecision(3)} s`;
}

// Numbers that JSON does not have come as texts.
function short(value, digits = 6) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const rounded = Number(value.toPrecision(digits));
  return Math.abs(rounded) < 1e-3 ? rounded.toExponential() : String(rounded);
}

const VERDICTS = {
  error: ["✕", "error"],
  warning: ["!", "warning"],
  note: ["i", "note"],
  right: ["✓", "checked, right"],
  partly: ["◐", "partly checked"],
  unchecked: ["–", "not checked"],
};

function badge(verdict, text) {
  const [sign, words] = VERDICTS[verdict] || ["?", verdict];
  return h("span", { class: `badge ${VERDICTS[verdict] ? verdict : ""}` }, h("span", { "aria-hidden": "true" }, sign), " ", text || words);
}

// The sign alone, for a column; what it means is its title.
function sign(verdict) {
  if (verdict === undefined) return null;
  const [shown, words] = VERDICTS[verdict] || ["?", verdict];
  return h("span", { class: `sign ${VERDICTS[verdict] ? verdict : ""}`, title: words, role: "img", "aria-label": words }, shown);
}

// A long name may be broken after its underscores and dots.
function breakable(name) {
  return String(name).split(/(?<=[_./])/).flatMap((piece, i) => (i ? [h("wbr", {}), piece] : [piece]));
}

function table(headings, rows, attributes, numbers = []) {
  return h("table", attributes,
    h("thead", {}, h("tr", {}, headings.map((text) => h("th", { scope: "col", class: numbers.includes(text) ? "number" : null }, text)))),
    h("tbody", {}, rows));
}

// Drawings are as wide as a phone there, so that what is written in them can be read.
const narrow = () => matchMedia("(max-width: 640px)").matches;

// Rows come a page at a time: the browser lays out no more than somebody looks at.
function paged(items, render, size, wrap) {
  const list = wrap();
  const body = list.tBodies ? list.tBodies[0] : list;
  const more = h("button", { type: "button", class: "more", on: { click: () => show(size) } });
  let shown = 0;
  function show(n) {
    body.append(...items.slice(shown, shown + n).map(render));
    shown = Math.min(items.length, shown + n);
    more.textContent = `Show ${Math.min(size, items.length - shown)} of ${items.length - shown} more`;
    more.hidden = shown >= items.length;
  }
  show(size);
  return h("div", { class: "paged" }, list, more);
}

// A line of the user's program, by its number in the table of lines.
function sourceLine(number) {
  const [file, line, text, module] = index.lines[number];
  return { file, line, text, module, path: index.files[file][0], route: to("artifacts", `file-${file}`, line) };
}

const graphLabel = (i) => `${index.graphs[i].id} ${index.graphs[i].direction}`;
const kernelRoute = (graph, nth) => to("program", graph, nth);
const kernelOf = (graph, nth) => index.graphs[graph].kernels.find((k) => k.nth === nth);
