// Source text with line numbers and highlighting; long ones a piece at a time.

const KEYWORDS = {
  python: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return True try while with yield",
  cpp: "alignas auto bool break case char class const constexpr continue default delete do double else enum extern false float for if inline int int64_t long namespace new nullptr operator private public return short signed sizeof static struct switch template this true typedef typename union unsigned using virtual void volatile while",
  text: "",
};
const WORDS = Object.fromEntries(Object.entries(KEYWORDS).map(([k, v]) => [k, new Set(v.split(" "))]));
const TOKENS = {
  python: /(#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(\b\d[\w.]*)|([A-Za-z_]\w*)/g,
  cpp: /(\/\/.*$|^\s*#\w+.*$)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(\b\d[\w.]*)|([A-Za-z_]\w*)/g,
  text: /($.)|($.)|($.)|([A-Za-z_]\w*)/g,
};
const LONGEST_LINE = 1000;
const PIECE = 300;

// `names` maps words to routes: they become links.
function highlight(line, language, names) {
  const found = [];
  const shown = line.length > LONGEST_LINE ? line.slice(0, LONGEST_LINE) : line;
  let end = 0;
  for (const match of shown.matchAll(TOKENS[language])) {
    const [text, comment, string, number, word] = match;
    // `aten.clone` is no node, although one may have that name.
    const route = word && names && shown[match.index - 1] !== "." && names.get(word);
    const kind = comment ? "comment" : string ? "string" : number ? "number" : WORDS[language].has(word) ? "keyword" : "";
    if (!kind && !route) continue;
    found.push(shown.slice(end, match.index), route ? h("a", { href: route }, text) : h("span", { class: kind }, text));
    end = match.index + text.length;
  }
  found.push(shown.slice(end));
  if (shown.length < line.length) found.push(h("span", { class: "dim" }, ` … (${line.length.toLocaleString("en")} characters)`));
  return found;
}

// options: first (number of the first line), language, names, marked (a Set of line numbers), at (line to begin near), label, note
function sourceView(lines, options) {
  const { first = 1, language = "text", names = null, marked = new Set(), at = null, label = "Source", note = null } = options;
  const rows = h("div", { class: "rows" });
  const view = h("div", { class: "code", role: "region", tabindex: "0", "aria-label": label }, rows);
  let top = at === null ? 0 : Math.max(0, at - first - Math.floor(PIECE / 3));
  if (lines.length <= 2 * PIECE) top = 0;
  let bottom = Math.min(lines.length, lines.length <= 2 * PIECE ? lines.length : top + PIECE);
  const row = (i) => h("div", { class: marked.has(first + i) ? "row marked" : "row", "data-line": first + i },
    h("span", { class: "no" }, first + i), h("code", {}, highlight(lines[i], language, names)));
  const range = (a, b) => Array.from({ length: b - a }, (_, k) => row(a + k));
  const earlier = h("button", { type: "button", class: "more", on: { click: () => {
    const start = Math.max(0, top - PIECE);
    rows.prepend(...range(start, top));
    top = start;
    update();
  } } });
  const further = h("button", { type: "button", class: "more", on: { click: () => {
    const end = Math.min(lines.length, bottom + PIECE);
    rows.append(...range(bottom, end));
    bottom = end;
    update();
  } } });
  function update() {
    earlier.hidden = top === 0;
    further.hidden = bottom === lines.length;
    earlier.textContent = `Show earlier lines (${top})`;
    further.textContent = `Show further lines (${lines.length - bottom})`;
  }
  rows.append(...range(top, bottom));
  update();
  view.prepend(earlier);
  view.append(further);
  if (note) view.append(h("p", { class: "dim note" }, note));
  const target = at !== null && rows.querySelector(`[data-line="${Number(at)}"]`);
  if (target) {
    target.classList.add("target");
    requestAnimationFrame(() => target.scrollIntoView({ block: "center" }));
  }
  return view;
}

// The lines of an artifact: its own text, or its part of the wrapper that it stands in.
async function artifactLines(number) {
  const artifact = index.artifacts[number];
  const holder = artifact.in === undefined ? artifact : index.artifacts[artifact.in];
  const lines = (await part(holder.text)).split("\n");
  return artifact.in === undefined ? lines : lines.slice(artifact.first - 1, artifact.last);
}

function cutNote(artifact) {
  const holder = artifact.in === undefined ? artifact : index.artifacts[artifact.in];
  return holder.cut ? `The text has ${holder.cut.toLocaleString("en")} characters; the page holds its beginning.` : null;
}

function artifactSource(number, options = {}) {
  const artifact = index.artifacts[number];
  return later(artifactLines(number), (lines) => {
    if (!lines.length) return h("p", { class: "dim" }, "This part of the text is not in the page.");
    return sourceView(lines, {
      first: artifact.first || 1, language: artifact.language, label: `Source of ${artifact.name}`, note: cutNote(artifact), ...options,
    });
  });
}
