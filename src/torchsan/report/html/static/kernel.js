// The chain from a kernel to the FX nodes to the user's lines, all three side by side. Pointing at one shows the others.

// wanted: { graph, nth, kernel, nodes, source, suspects }
function chainOf(wanted) {
  const nodes = wanted.graph === null ? Promise.resolve([]) : part(`nodes-${wanted.graph}`);
  return later(nodes, (known) => {
    const by_name = new Map(known.map((node) => [node[0], node]));
    // Suspicion that falls on every node says nothing.
    const suspects = wanted.nodes.every((name) => wanted.suspects.has(name)) ? new Set() : wanted.suspects;
    const mine = wanted.nodes.map((name) => by_name.get(name) || [name, "", "", [], null, 0]);
    const lines = new Map();
    for (const number of [...wanted.source, ...mine.map((node) => node[4])]) if (number !== null) addLine(lines, number);
    for (const node of mine) if (node[4] !== null) lines.get(lineKey(node[4])).nodes.add(node[0]);
    const columns = h("div", { class: "columns" },
      h("section", { "aria-label": "Generated kernel" }, h("h3", {}, "Generated kernel"), kernelSource(wanted)),
      h("section", { "aria-label": "FX nodes" }, h("h3", {}, `FX nodes (${mine.length})`), nodeList(wanted.graph, mine, suspects)),
      h("section", { "aria-label": "Your source" }, h("h3", {}, "Your source"), lineList(lines)));
    const light = (event) => {
      const item = event.target.closest ? event.target.closest("[data-node], [data-key]") : null;
      for (const lit of columns.querySelectorAll(".lit")) lit.classList.remove("lit");
      if (!item) return;
      const names = item.dataset.node !== undefined ? new Set([item.dataset.node]) : lines.get(item.dataset.key).nodes;
      for (const other of columns.querySelectorAll("[data-node]")) other.classList.toggle("lit", names.has(other.dataset.node));
      for (const other of columns.querySelectorAll("[data-key]")) {
        const entry = lines.get(other.dataset.key);
        other.classList.toggle("lit", other === item || [...names].some((name) => entry.nodes.has(name)));
      }
    };
    columns.addEventListener("mouseover", light);
    columns.addEventListener("focusin", light);
    return columns;
  });
}

const lineKey = (number) => `${index.lines[number][0]}:${index.lines[number][1]}`;

function addLine(lines, number) {
  const key = lineKey(number);
  const line = sourceLine(number);
  if (!lines.has(key)) lines.set(key, { ...line, key, nodes: new Set(), modules: new Set() });
  const entry = lines.get(key);
  if (line.module) entry.modules.add(line.module);
  if (!entry.text) entry.text = line.text;
}

// What is about nodes and no kernel, as a graph pass is, still ends up in some kernel.
function computing(graph, nodes) {
  const wanted = new Set(nodes);
  const shared = (k) => k.nodes.filter((name) => wanted.has(name)).length;
  const best = graph.kernels.reduce((a, b) => (a && shared(a) >= shared(b) ? a : b), null);
  return best && shared(best) ? best : null;
}

function kernelSource(wanted) {
  if (wanted.graph === null) return h("p", { class: "dim" }, "The finding is about no compiled graph.");
  const graph = index.graphs[wanted.graph];
  const found = wanted.kernel ? null : computing(graph, wanted.nodes);
  if (found) {
    return [h("p", { class: "dim" }, "No single kernel is to blame; this one computes the nodes: ", link(kernelRoute(wanted.graph, found.nth), breakable(`${found.name} #${found.nth}`))),
      kernelSource({ ...wanted, kernel: found.name, nth: found.nth })];
  }
  const artifact = wanted.kernel && Object.hasOwn(graph.definitions, wanted.kernel) ? graph.definitions[wanted.kernel] : undefined;
  if (artifact !== undefined) {
    return [h("p", {}, link(to("artifacts", artifact), wanted.kernel)), artifactSource(artifact)];
  }
  const kernel = wanted.nth === null ? null : kernelOf(wanted.graph, wanted.nth);
  const wrapper = graph.artifacts.wrapper;
  if (!kernel || !kernel.line || wrapper === undefined) {
    return h("p", { class: "dim" }, wanted.kernel ? "Its source is not in the recording: a library's own kernel." : "The finding is about no single kernel.");
  }
  const from = Math.max(1, kernel.line - 6);
  return [
    h("p", { class: "dim" }, "A library's kernel has no generated source; this is its call in the ", link(to("artifacts", wrapper, kernel.line), "wrapper"), "."),
    later(artifactLines(wrapper), (lines) => sourceView(lines.slice(from - 1, kernel.line + 3), {
      first: from, language: "python", marked: new Set([kernel.line]), label: "The call in the wrapper",
    })),
  ];
}

function nodeList(graph, nodes, suspects) {
  if (!nodes.length) return h("p", { class: "dim" }, "none are known");
  const text = graph === null ? undefined : index.graphs[graph].artifacts.graph;
  const item = ([name, op, type, inputs, line, place]) => h("li", { "data-node": name, class: suspects.has(name) ? "suspect" : "" },
    h("div", { class: "head" }, text !== undefined && place ? link(to("artifacts", text, place), code(name)) : code(name),
      suspects.has(name) ? h("span", { class: "tag" }, "under suspicion") : null,
      line !== null ? link(sourceLine(line).route, h("span", { class: "where" }, `${base(sourceLine(line).path)}:${sourceLine(line).line}`)) : null),
    h("div", { class: "dim" }, op, type ? ` → ${type}` : ""),
    inputs.length ? h("div", { class: "dim" }, `from ${inputs.join(", ")}`) : null);
  return paged(nodes, item, 100, () => h("ul", { class: "nodes" }));
}

const base = (path) => path.split(/[\\/]/).pop();

function lineList(lines) {
  if (!lines.size) return h("p", { class: "dim" }, "no line is known");
  const sorted = [...lines.values()].sort((a, b) => a.file - b.file || a.line - b.line);
  const item = (entry) => h("li", { "data-key": entry.key },
    h("div", {}, link(entry.route, `${entry.path}:${entry.line}`)),
    h("pre", {}, h("code", {}, highlight(entry.text || "", "python"))),
    entry.modules.size ? h("div", { class: "dim" }, `in ${[...entry.modules].join(", ")}`) : null,
    entry.nodes.size ? h("div", { class: "dim" }, `nodes ${[...entry.nodes].join(", ")}`) : null);
  return paged(sorted, item, 100, () => h("ul", { class: "lines" }));
}
