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

function kernelTable(graph, filter) {
  const rows = h("div", {});
  const input = h("input", { type: "search", value: filter, placeholder: "kernel, operator, node, buffer", "aria-label": "Filter kernels", on: { input: () => show() } });
  const verdicts = h("select", { "aria-label": "Verdict", on: { change: () => show() } },
    [["", "any verdict"], ...Object.entries(VERDICTS).map(([k, [sign, words]]) => [k, `${sign} ${words}`])].map(([value, text]) => h("option", { value }, text)));
  function show() {
    const graphs = index.graphs.map((g, i) => [g, i]).filter(([, i]) => graph === null || i === graph);
    const wanted = input.value.trim().toLowerCase();
    const fitting = (g) => g.kernels.filter((k) => matches(k, wanted) && (!verdicts.value || k.verdict === verdicts.value));
    const found = graphs.map(([g, i]) => [g, i, fitting(g)]).filter(([, , kernels]) => kernels.length || !(wanted || verdicts.value));
    rows.replaceChildren(found.length ? paged(found, ([g, i, kernels]) => graphSection(g, i, kernels), 12, () => h("div", {})) : h("p", { class: "dim" }, "no kernel fits"));
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
  if (!kernel.words) kernel.words = [kernel.name, ...kernel.ops, ...kernel.nodes, ...kernel.reads.map((r) => r[0]), ...kernel.writes.map((w) => w[0])].join("\n").toLowerCase();
  return kernel.words.includes(wanted);
}

function graphSection(g, i, kernels) {
  const longest = Math.max(...g.kernels.map((k) => k.seconds || 0), 1e-12);
  const total = g.kernels.reduce((sum, k) => sum + (k.seconds || 0), 0);
  const shown = [count(kernels.length, "kernel"), g.seconds ? `compiled in ${seconds(g.seconds)}` : null,
    total ? `kernels take ${seconds(total)}` : null, `${g.checked} of ${g.buffers} buffers checked`,
    g.left_out ? `${count(g.left_out, "kernel")} more: torchsan report --all` : null].filter(Boolean).join(" · ");
  const row = (k) => h("tr", { class: "openable", on: { click: (event) => { if (!event.target.closest("a")) location.hash = kernelRoute(i, k.nth); } } },
    h("td", { class: "number" }, k.nth),
    h("td", {}, badge(k.verdict), k.findings.map((id) => [" ", link(to("findings", id), id)])),
    h("td", { class: "name" }, link(kernelRoute(i, k.nth), breakable(k.name))),
    h("td", {}, k.kind),
    h("td", { class: "number" }, seconds(k.seconds), k.seconds ? meter(k.seconds / longest) : null),
    h("td", { class: "number" }, k.bytes ? bytes(k.bytes[0] + k.bytes[1]) : ""),
    h("td", { class: "number" }, rangeText(k.range)),
    h("td", {}, k.source.length ? [lineText(k.source[0]), k.source.length > 1 ? h("span", { class: "dim" }, ` +${k.source.length - 1}`) : null] : h("span", { class: "dim" }, k.ops.join(", "))));
  const links = Object.entries(g.artifacts).map(([kind, n]) => [" · ", link(to("artifacts", n), kind === "graph" ? "FX graph" : kind)]);
  return h("section", { "aria-label": `Graph ${graphLabel(i)}` },
    h("h2", {}, `Graph ${graphLabel(i)}`), h("p", { class: "dim" }, shown, links),
    h("div", { class: "scroll" }, paged(kernels, row, 300, () => table(["#", "verdict", "kernel", "kind", "time", "bytes", "values", "your line"], [], { class: "grid kernels" }))));
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
        ["kind", k.kind], ["time", k.seconds === undefined ? "not measured" : `${seconds(k.seconds)}${k.launches > 1 ? ` in ${k.launches} launches` : ""}, the fastest of the timed calls`],
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
