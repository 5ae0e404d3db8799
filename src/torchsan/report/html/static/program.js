// Program: graphs, their kernels in launch order; any kernel with its source, nodes, lines, and what it is connected to.

function programView(graph, nth) {
  if (!index.graphs.length) return [h("h1", {}, "Program"), h("p", {}, "Nothing was compiled.")];
  if (graph === "find") return kernelTable(null, nth || "");
  const i = Number(graph);
  const known = graph !== undefined && Number.isInteger(i) && index.graphs[i];
  if (known && nth !== undefined) {
    const kernel = kernelOf(i, Number(nth));
    if (kernel) return kernelPage(i, kernel);
  }
  return kernelTable(known ? i : null, "");
}

function kernelTable(graph, filter, folded = true) {
  const rows = h("div", {});
  const input = h("input", { type: "search", value: filter, placeholder: "kernel, module, operator, node, buffer", "aria-label": "Filter kernels", on: { input: () => show() } });
  const verdicts = h("select", { "aria-label": "Verdict", on: { change: () => show() } },
    [["", "any verdict"], ...Object.entries(VERDICTS).map(([k, [sign, words]]) => [k, `${sign} ${words}`])].map(([value, text]) => h("option", { value }, text)));
  function show() {
    const order = (i) => Math.min(...index.graphs[i].kernels.map((k) => WORST.indexOf(k.verdict)).map((n) => (n < 0 ? WORST.length : n)));
    const graphs = index.graphs.map((g, i) => [g, i]).filter(([, i]) => graph === null || i === graph).sort((a, b) => order(a[1]) - order(b[1]) || a[1] - b[1]);
    const wanted = input.value.trim().toLowerCase();
    const fitting = (g) => g.kernels.filter((k) => matches(k, wanted) && (!verdicts.value || k.verdict === verdicts.value));
    const found = graphs.map(([g, i]) => [g, i, fitting(g)]).filter(([, , kernels]) => kernels.length || !(wanted || verdicts.value));
    rows.replaceChildren(found.length ? paged(found, ([g, i, kernels]) => graphSection(g, i, kernels, folded && !wanted && !verdicts.value), 12, () => h("div", {})) : h("p", { class: "dim" }, "no kernel fits"));
  }
  show();
  const tab = (route, text, current) => h("li", {}, h("a", { href: route, "aria-current": current ? "true" : null }, text));
  return [
    h("h1", {}, "Program"),
    h("div", { class: "bar" },
      h("nav", { "aria-label": "Graphs" }, h("ul", { class: "tabs" }, tab("#program", "all graphs", graph === null),
        index.graphs.slice(0, 40).map((g, i) => tab(to("program", i), graphLabel(i), graph === i)))),
      input, verdicts),
    rows,
  ];
}

function matches(kernel, wanted) {
  if (!wanted) return true;
  if (!kernel.words) kernel.words = [kernel.name, moduleOf(kernel), ...kernel.ops, ...kernel.nodes, ...kernel.reads.map((r) => r[0]), ...kernel.writes.map((w) => w[0])].join("\n").toLowerCase();
  return kernel.words.includes(wanted);
}

// The modules of a kernel's lines: the first that has one. A layer is a module up to its first number.
function moduleOf(k) {
  const line = k.source.find((n) => index.lines[n][3]);
  return line === undefined ? "" : index.lines[line][3];
}

function layerOf(k) {
  const parts = moduleOf(k).split(".");
  const at = parts.findIndex((part) => /^\d+$|\[\d+\]$/.test(part));
  return parts.slice(0, at < 0 ? Math.min(2, parts.length) : at + 1).join(".");
}

const WORST = ["error", "warning", "note"];
const FEW = 40;

// What is wrong first; the others by layer, folded where there are many.
function kernelGroups(kernels, fold, rows) {
  const bad = WORST.flatMap((word) => kernels.filter((k) => k.verdict === word));
  const layers = new Map();
  for (const k of kernels) if (!WORST.includes(k.verdict)) layers.set(layerOf(k), [...(layers.get(layerOf(k)) || []), k]);
  if (!fold || layers.size < 2) return rows([...bad, ...kernels.filter((k) => !WORST.includes(k.verdict))]);
  const section = ([layer, list]) => h("details", { class: "layer" }, h("summary", {}, h("b", {}, breakable(layer || "no module")), h("span", { class: "dim" },
    ` ${count(list.length, "kernel")}, ${seconds(list.reduce((sum, k) => sum + (k.seconds || 0), 0)) || "not timed"}${list.every((k) => k.verdict === "right") ? "" : `, ${list.filter((k) => k.verdict !== "right").length} not fully checked`}`)));
  const filled = ([layer, list]) => {
    const details = section([layer, list]);
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(rows(list)); });
    return details;
  };
  return [bad.length ? rows(bad) : null, [...layers].map(filled)];
}

function graphSection(g, i, kernels, fold) {
  const longest = Math.max(...g.kernels.map((k) => k.seconds || 0), 1e-12);
  const total = g.kernels.reduce((sum, k) => sum + (k.seconds || 0), 0);
  const shown = [count(kernels.length, "kernel"), g.seconds ? `compiled in ${seconds(g.seconds)}` : null,
    total ? `kernels take ${seconds(total)}` : null, `${g.checked} of ${g.buffers} buffers checked`,
    kernels.some((k) => WORST.includes(k.verdict)) ? "what is wrong first" : null,
    g.left_out ? `${count(g.left_out, "kernel")} more: torchsan report --all` : null].filter(Boolean).join(" · ");
  const checks = [...new Set(g.kernels.flatMap((k) => Object.keys(k.checks)))];
  const ranges = g.kernels.some((k) => k.range);
  const blamed = g.kernels.some((k) => k.findings.length);
  const headings = ["#", ...checks, "kernel", ...(blamed ? ["findings"] : []), "module", "kind", "time", "bytes", ...(ranges ? ["values"] : []), "your line"];
  const row = (k) => h("tr", { class: "openable", on: { click: (event) => { if (!event.target.closest("a")) location.hash = kernelRoute(i, k.nth); } } },
    h("td", { class: "number" }, k.nth),
    checks.map((check) => h("td", { class: "verdict", "data-check": check }, sign(k.checks[check]))),
    h("td", { class: "name" }, link(kernelRoute(i, k.nth), breakable(k.name))),
    blamed ? h("td", { class: "ids" }, k.findings.map((id) => [link(to("findings", id), id), " "])) : null,
    h("td", { class: "module" }, breakable(moduleOf(k))),
    h("td", { class: "kind" }, k.kind),
    h("td", { class: "number time" }, seconds(k.seconds), k.seconds ? meter(k.seconds / longest) : null),
    h("td", { class: "number bytes" }, k.bytes ? bytes(k.bytes[0] + k.bytes[1]) : ""),
    ranges ? h("td", { class: "number range" }, rangeText(k.range)) : null,
    h("td", { class: "line" }, k.source.length ? [lineText(k.source[0]), k.source.length > 1 ? h("span", { class: "dim" }, ` +${k.source.length - 1}`) : null] : h("span", { class: "dim" }, k.ops.join(", "))));
  const links = Object.entries(g.artifacts).map(([kind, n]) => [" · ", link(to("artifacts", n), kind === "graph" ? "FX graph" : kind)]);
  return h("section", { "aria-label": `Graph ${graphLabel(i)}` },
    h("h2", {}, `Graph ${graphLabel(i)}`), h("p", { class: "dim" }, shown, links),
    h("div", { class: "scroll" }, kernelGroups(kernels, fold && kernels.length > FEW, (list) => paged(list, row, 300, () => table(headings, [], { class: "grid kernels" }, ["#", "time", "bytes"])))));
}

function rangeText(range) {
  if (!range) return "";
  const [low, high, nan, infinite] = range;
  return [low !== null ? `${short(low, 3)} … ${short(high, 3)}` : "", nan ? ` NaN ${nan}` : "", infinite ? ` Inf ${infinite}` : ""].join("");
}

function kernelPage(i, k) {
  const g = index.graphs[i];
  const at = g.kernels.indexOf(k);
  const reach = (n) => link(kernelRoute(i, n), breakable(`#${n} ${kernelOf(i, n).name}`));
  const step = (other, text) => other ? h("a", { href: kernelRoute(i, other.nth), class: "button" }, text) : null;
  const own = index.values.all ? later(part("values"), (values) => kernelValues(values, i, k)) : null;
  return [
    h("p", { class: "bar" }, h("a", { href: to("program", i), class: "button" }, "← all kernels"), step(g.kernels[at - 1], "previous"), step(g.kernels[at + 1], "next")),
    h("h1", {}, h("span", { class: "dim" }, `graph ${graphLabel(i)} #${k.nth} `), k.name),
    h("p", { class: "lead" }, badge(k.verdict), k.findings.map((id) => [" ", link(to("findings", id), `${id}: ${index.findings.find((f) => f.id === id).message}`)])),
    h("div", { class: "cards" },
      h("section", { class: "card", "aria-label": "Figures" }, facts([
        ["checks", Object.entries(k.checks).map(([check, word]) => h("div", {}, `${check}: `, badge(word)))], ["kind", k.kind], ["module", moduleOf(k)], ["time", k.seconds === undefined ? "not measured" : `${seconds(k.seconds)}${k.launches > 1 ? ` in ${k.launches} launches` : ""}, the fastest of the timed calls`],
        ["bytes", k.bytes ? `${bytes(k.bytes[0])} read, ${bytes(k.bytes[1])} written` : null], ["values", rangeText(k.range)], ["operators", k.ops.join(", ")],
        ["called", k.line && g.artifacts.wrapper !== undefined ? link(to("artifacts", g.artifacts.wrapper, k.line), `line ${k.line} of the wrapper`) : null],
      ])),
      h("section", { class: "card", "aria-label": "Reads" }, h("h2", {}, "Reads"), h("ul", { class: "flow" }, k.reads.map(([name, from]) =>
        h("li", {}, code(name), " ", from === null ? h("span", { class: "dim" }, g.inputs.includes(name) ? "a graph input" : "from outside of the kernels") : ["from ", reach(from)])))),
      h("section", { class: "card", "aria-label": "Writes" }, h("h2", {}, "Writes"), h("ul", { class: "flow" }, k.writes.map(([name, readers]) =>
        h("li", {}, code(name), " ", readers.length ? ["read by ", readers.map((n, j) => [j ? ", " : "", reach(n)])] : h("span", { class: "dim" }, "read by no other kernel")))))),
    h("h2", {}, "Kernel, nodes, source"),
    chainOf({ graph: i, nth: k.nth, kernel: k.name, nodes: k.nodes, source: k.source, suspects: suspectsOf(k) }),
    own,
  ];
}

function suspectsOf(k) {
  return new Set(index.findings.filter((f) => k.findings.includes(f.id)).flatMap((f) => f.nodes));
}
