// Artifacts: every graph of a stage, wrapper, kernel, cache entry and source file as a page: what it is, its source, what it is connected to.

const GRAPHS = ["FX graph", "stage graph"];

function artifactsView(which, line) {
  const filter = h("input", { type: "search", placeholder: "Filter artifacts", "aria-label": "Filter artifacts", on: { input: () => show() } });
  const list = h("div", {});
  const number = artifactNumber(which);
  function show() {
    const wanted = filter.value.trim().toLowerCase();
    const groups = new Map();
    index.artifacts.forEach((a, i) => {
      if (wanted && !`${a.name} ${a.kind}`.toLowerCase().includes(wanted)) return;
      if (!groups.has(a.kind)) groups.set(a.kind, []);
      groups.get(a.kind).push(i);
    });
    const item = (i) => h("li", {}, h("a", { href: to("artifacts", i), class: "item", "aria-current": i === number ? "true" : null }, breakable(index.artifacts[i].name)));
    list.replaceChildren(...[...groups].map(([kind, numbers]) => h("section", { "aria-label": kind }, h("h2", {}, `${kind} (${numbers.length})`), paged(numbers, item, 50, () => h("ul", { class: "items" })))));
  }
  show();
  const page = number === null ? [h("h2", {}, "Artifacts"), h("p", {}, "Choose one from the list: the graph at the end of each stage of the compiler, the wrappers that Inductor generated, their kernels, what a compile cache has of them, and the files of yours that they came from. The search field above looks through all names.")]
    : artifactPage(number, line === undefined ? null : Number(line));
  return h("div", { class: number === null ? "split" : "split chosen" }, h("aside", { "aria-label": "List of artifacts" }, h("h1", {}, `Artifacts (${index.artifacts.length})`), filter, list), h("article", {}, page));
}

function artifactNumber(which) {
  if (which === undefined) return null;
  const file = /^file-(\d+)$/.exec(which);
  let number = file ? index.artifacts.findIndex((a) => a.file === Number(file[1])) : Number(which);
  if (!Number.isInteger(number)) number = index.artifacts.findIndex((a) => addressOf(a) === which);
  return Number.isInteger(number) && index.artifacts[number] ? number : null;
}

// An address that stays the same when there are more artifacts: kernels of two graphs may have one name.
const addressOf = (a) => (a.kind === "kernel" ? `${graphLabel(a.graph).replace(" ", "-")}.${a.name}` : a.name);

function artifactPage(number, line) {
  const a = index.artifacts[number];
  if (a.kind === "source file") return filePage(a, line);
  const graph = a.graph === null || a.graph === undefined ? null : index.graphs[a.graph];
  const text = a.in === undefined ? a : index.artifacts[a.in];
  const names = a.nodes ? part(a.nodes) : graph && a.kind !== "cache entry" ? part(`nodes-${a.graph}`) : Promise.resolve([]);
  return [
    h("h2", {}, a.name),
    facts([
      ["kind", a.kind], ["made by", a.made], ["made", graph && graph.made], ["stage", a.stage], ["passes", a.passes && a.passes.length ? h("div", {}, a.passes.map((name, n) => [n ? ", " : "", code(name)])) : null],
      ...Object.entries(a.facts || {}).map(([name, value]) => [name, code(value)]), ["path", code(a.path)], ["language", a.language], ["sha256", a.digest && code(a.digest)],
      ["address", link(to("artifacts", addressOf(a)), code(to("artifacts", addressOf(a))))],
      ["size", a.in === undefined ? `${bytes(a.bytes)}, ${count(a.lines, "line")}` : `${count(a.last - a.first + 1, "line")}: ${a.first} to ${a.last} of the wrapper`],
      ["graph", graph ? link(to("program", a.graph), graphLabel(a.graph)) : null],
      ["cut", text.cut ? cutNote(a) : null],
    ]),
    later(names, (nodes) => [purpose(a, graph), connections(number, a, graph, nodes), artifactSource(number, { at: line, marked: new Set(line === null ? [] : [line]), names: linkedNames(a, graph, nodes) })]),
  ];
}

// What it is for, what it costs, whether it is safe: of a kernel's launches, or of all launches of the graph.
function purpose(a, graph) {
  if (!graph) return null;
  const launches = a.kind === "kernel" ? graph.kernels.filter((k) => k.name === a.name) : graph.kernels;
  const lines = [...new Map(launches.flatMap((k) => k.source).map((n) => [lineKey(n), n])).values()];
  const modules = [...new Set(launches.map(moduleOf).filter(Boolean))];
  const time = launches.reduce((sum, k) => sum + (k.seconds || 0), 0);
  const all = index.graphs.flatMap((g) => g.kernels).reduce((sum, k) => sum + (k.seconds || 0), 0);
  const moved = launches.reduce(([r, w], k) => (k.bytes ? [r + k.bytes[0], w + k.bytes[1]] : [r, w]), [0, 0]);
  const checks = [...new Set(launches.flatMap((k) => Object.keys(k.checks)))];
  const tallied = (check) => ["error", "warning", "note", "right", "partly", "unchecked"].map((word) => [word, launches.filter((k) => k.checks[check] === word).length]).filter(([, n]) => n);
  const mutated = [...new Set(launches.flatMap((k) => k.writes.map((w) => w[0])).filter((name) => graph.inputs.includes(name)))];
  return h("div", { class: "cards" },
    h("section", { class: "card" }, h("h3", {}, "What it is for"), facts([["modules", modules.slice(0, 12).join(", ")]]),
      lines.length ? paged(lines, (n) => h("li", {}, lineText(n)), 6, () => h("ul", { class: "flow" })) : h("p", { class: "dim" }, "no line of yours is known")),
    h("section", { class: "card" }, h("h3", {}, "What it costs"), time ? facts([["time", `${a.kind === "kernel" ? "" : "its kernels: "}${seconds(time)} in the fastest of the timed calls`], ["share", `${(100 * time / all).toFixed(1)} % of all kernels`], ["bytes", `${bytes(moved[0])} read, ${bytes(moved[1])} written`], ["launches", String(launches.length)]]) : h("p", { class: "dim" }, "it was not timed")),
    h("section", { class: "card" }, h("h3", {}, "Is it safe?"), facts([...checks.map((check) => [check, tallied(check).map(([word, n]) => h("div", {}, `${n} `, badge(word)))]), ["overwrites", mutated.length ? [code(mutated.join(", ")), ", inputs of the graph"] : null]])));
}

// The words of a text that lead somewhere: kernels in a wrapper, nodes in a graph.
function linkedNames(a, graph, nodes) {
  const names = new Map();
  if (!graph) return names;
  if (a.kind === "wrapper") for (const [name, n] of Object.entries(graph.definitions)) names.set(name, to("artifacts", n));
  if (GRAPHS.includes(a.kind)) {
    const kernels = new Map();
    for (const k of graph.kernels) for (const node of k.nodes) if (!kernels.has(node)) kernels.set(node, k.nth);
    for (const node of nodes) if (kernels.has(node[0])) names.set(node[0], kernelRoute(a.graph, kernels.get(node[0])));
  }
  return names;
}

function connections(number, a, graph, nodes) {
  if (!graph) return null;
  const other = (kind) => graph.artifacts[kind] === undefined ? null : link(to("artifacts", graph.artifacts[kind]), kind === "graph" ? "the FX graph" : "the wrapper");
  const twins = index.graphs.map((g, i) => [g, i]).filter(([g, i]) => g.id === graph.id && i !== a.graph)
    .flatMap(([g, i]) => Object.entries(g.artifacts).filter(([kind]) => (kind === "graph") === GRAPHS.includes(a.kind)).map(([, n]) => link(to("artifacts", n), index.artifacts[n].name)));
  const findings = index.findings.filter((f) => f.graph === a.graph && (a.kind !== "kernel" || f.kernel === a.name)).map((f) => link(to("findings", f.id), `${f.id} ${f.kind}`));
  let defines = [];
  let depends = [];
  let related = [...twins];
  let next = null;
  if (a.kind === "kernel") {
    const launches = graph.kernels.filter((k) => k.name === a.name);
    const before = new Set(launches.flatMap((k) => k.reads.map((r) => r[1])).filter((n) => n !== null));
    const after = new Set(launches.flatMap((k) => k.writes.flatMap((w) => w[1])));
    defines = launches.map((k) => link(kernelRoute(a.graph, k.nth), `launch #${k.nth}`)).concat([...new Set(launches.flatMap((k) => k.writes.map((w) => w[0])))].map((name) => code(name)));
    depends = [other("wrapper"), other("graph"), ...[...before].map((n) => link(kernelRoute(a.graph, n), `#${n} ${kernelOf(a.graph, n).name}`))];
    related = [...after].map((n) => link(kernelRoute(a.graph, n), `read by #${n} ${kernelOf(a.graph, n).name}`));
  } else if (a.kind === "wrapper") {
    defines = Object.entries(graph.definitions).map(([name, n]) => link(to("artifacts", n), breakable(name)));
    depends = [other("graph"), ...[...new Set(graph.kernels.filter((k) => k.kind !== "fused").map((k) => k.name))].map((name) => link(to("program", "find", name), name))];
  } else if (a.kind === "cache entry") {
    depends = [other("graph"), other("wrapper")];
  } else {
    const stage = (n) => link(to("artifacts", n), breakable(index.artifacts[n].name));
    defines = nodes.filter((node) => node[1] !== "placeholder").map((node) => link(to("artifacts", number, node[5]), node[0]));
    const after = index.artifacts.flatMap((b, n) => (b.before === number ? [stage(n)] : []));
    next = after.length ? after : [other("wrapper")];
    depends = a.before !== undefined ? [stage(a.before)] : [...new Set(nodes.map((node) => node[4]).filter((n) => n !== null).map((n) => index.lines[n][0]))].map((n) => link(to("artifacts", `file-${n}`), index.files[n][0]));
    related = [...next, ...graph.cache.map(stage), ...twins];
  }
  const group = (title, items) => {
    const found = items.filter(Boolean);
    return h("section", { class: "card" }, h("h3", {}, `${title} (${found.length})`), found.length ? paged(found, (item) => h("li", {}, item), 12, () => h("ul", { class: "flow" })) : h("p", { class: "dim" }, "nothing"));
  };
  return [picture(a, depends, next || (a.kind === "kernel" ? related : defines)), h("div", { class: "cards" }, group("Defines", defines), group("Depends on", depends), group("Related", [...related, ...findings]))];
}

// What it depends on at the left, what comes of it at the right; the lists below have all of them.
function picture(a, before, after) {
  const MOST = 5;
  const texts = (items) => items.filter(Boolean).slice(0, MOST).map((item) => (item.textContent.length > 34 ? `${item.textContent.slice(0, 33)}…` : item.textContent));
  const [left, right] = [texts(before), texts(after)];
  if (!left.length && !right.length) return null;
  const rows = Math.max(left.length, right.length, 1);
  const height = rows * 30;
  const y = (n, of) => (height * (n + 0.5)) / of;
  const box = (x, at, text) => [svg("rect", { class: "buffer", x, y: at - 12, width: 240, height: 24 }), svg("text", { x: x + 8, y: at + 4 }, text)];
  const line = (x, from, end, target) => svg("path", { class: "planned", d: `M${x} ${from} C${x + 50} ${from} ${end - 50} ${target} ${end} ${target}` });
  const middle = height / 2;
  return h("figure", {}, h("figcaption", {}, h("b", {}, "What it comes from, and what comes of it")),
    svg("svg", { viewBox: `0 0 960 ${height}`, role: "img", "aria-label": "What it depends on, and what depends on it" },
      left.map((text, n) => [line(240, y(n, left.length), 360, middle), box(0, y(n, left.length), text)]),
      right.map((text, n) => [line(600, middle, 720, y(n, right.length)), box(720, y(n, right.length), text)]),
      box(360, middle, a.name.length > 34 ? `${a.name.slice(0, 33)}…` : a.name)));
}

// A file of the user's: the lines that the recording knows, with the nodes and kernels that came from them.
function filePage(a, wanted) {
  const all = Promise.all(index.graphs.map((_, i) => part(`nodes-${i}`)));
  return [
    h("h2", {}, a.name),
    facts([["kind", a.kind], ["path", code(a.path)]]),
    h("p", { class: "dim" }, "The recording holds the lines that were compiled, not the whole file."),
    later(all, (nodes) => {
      const lines = new Map();
      const entry = (number) => {
        const line = sourceLine(number);
        if (line.file !== a.file) return null;
        if (!lines.has(line.line)) lines.set(line.line, { line: line.line, text: "", modules: new Set(), nodes: [], kernels: new Map(), findings: new Set() });
        const found = lines.get(line.line);
        found.text = found.text || line.text;
        if (line.module) found.modules.add(line.module);
        return found;
      };
      index.lines.forEach((_, n) => entry(n));
      nodes.forEach((list, graph) => list.forEach((node) => { if (node[4] !== null) entry(node[4])?.nodes.push([graph, node]); }));
      index.graphs.forEach((g, i) => g.kernels.forEach((k) => k.source.forEach((n) => entry(n)?.kernels.set(`${i}/${k.nth}`, [i, k]))));
      index.findings.forEach((f) => f.source.forEach((n) => entry(n)?.findings.add(f)));
      const sorted = [...lines.values()].sort((x, y) => x.line - y.line);
      const item = (l) => h("section", { class: l.line === wanted ? "card fileline target" : "card fileline", "data-line": l.line, "aria-label": `Line ${l.line}` },
        h("pre", {}, h("span", { class: "no" }, l.line), h("code", {}, highlight(l.text, "python"))),
        facts([
          ["module", [...l.modules].slice(0, 20).join(", ")],
          ["findings", [...l.findings].map((f) => [link(to("findings", f.id), f.id), " "])],
          ["kernels", l.kernels.size ? many([...l.kernels.values()].map(([i, k]) => link(kernelRoute(i, k.nth), `${k.name} #${k.nth}`))) : null],
          ["nodes", l.nodes.length ? many(l.nodes.map(([i, node]) => index.graphs[i].artifacts.graph !== undefined && node[5] ? link(to("artifacts", index.graphs[i].artifacts.graph, node[5]), node[0]) : code(node[0]))) : null],
        ].filter(([name, value]) => name !== "findings" || value.length)));
      const view = paged(sorted, item, 60, () => h("div", {}));
      requestAnimationFrame(() => view.querySelector(".target")?.scrollIntoView({ block: "center" }));
      return view;
    }),
  ];
}

function many(items) {
  const shown = items.slice(0, 40).map((item, i) => [i ? ", " : "", item]);
  return items.length > 40 ? [shown, h("span", { class: "dim" }, ` … and ${items.length - 40} more`)] : shown;
}
