// Findings: a list, and one of them with its evidence as pictures and the chain from the kernel to the user's lines.

function findingsView(id) {
  const { findings } = index;
  if (!findings.length) return [h("h1", {}, "Findings"), h("p", {}, "Nothing was found."), h("p", {}, link("#verdict", "What was checked"))];
  const chosen = findings.find((f) => f.id === id) || findings[0];
  const item = (f) => h("li", {}, h("a", { href: to("findings", f.id), class: "item", "aria-current": f === chosen ? "true" : null },
    badge(f.severity, f.id), " ", h("b", {}, f.kind), h("span", { class: "dim" }, f.follows ? `follows from ${f.follows}: ` : "", breakable(f.kernel || f.pass || f.ops[0] || f.stage || f.check))));
  return h("div", { class: "split" },
    h("aside", { "aria-label": "List of findings" }, h("h1", {}, `Findings (${findings.length})`), paged(ordered(findings, chosen), item, 100, () => h("ul", { class: "items" }))),
    h("article", { "aria-label": `Finding ${chosen.id}` }, findingPage(chosen)));
}

// The list begins with a page that holds the chosen one.
function ordered(findings, chosen) {
  return findings.indexOf(chosen) < 100 ? findings : [chosen, ...findings.filter((f) => f !== chosen)];
}

function findingPage(f) {
  const graph = f.graph;
  const place = [
    ["check", f.check], ["stage", f.stage], ["pass", f.pass && code(f.pass)],
    ["graph", graph === null ? f.label : link(to("program", graph), graphLabel(graph))],
    ["kernel", f.kernel && (f.launch === null ? code(f.kernel) : link(kernelRoute(graph, f.launch), code(f.kernel), ` #${f.launch}`))],
    ["buffer", f.buffer && code(f.buffer)],
    ["operators", f.ops.length ? f.ops.join(", ") : null], ["when", f.when],
    ["follows from", f.follows && link(to("findings", f.follows), f.follows)],
  ];
  return [
    h("h2", {}, badge(f.severity, f.severity), ` ${f.id}: ${f.kind}`),
    f.message.split("\n").map((line) => h("p", { class: "lead" }, line)),
    h("dl", { class: "place" }, place.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    f.source.length ? h("p", {}, lineText(f.source[0])) : null,
    f.text.length ? h("ul", { class: "evidence" }, f.text.map((line) => h("li", {}, line))) : null,
    pictures(f),
    restOf(f.rest),
    f.graph !== null || f.source.length ? [
      h("h2", {}, "From the kernel to your code"),
      chainOf({ graph, nth: f.launch, kernel: f.kernel, nodes: nodesOf(f), source: f.source, suspects: new Set(f.nodes) }),
    ] : null,
    f.repro ? h("p", { class: "script" }, "By itself, as a script: ", code(`torchsan repro ${index.run.name} ${f.id}`)) : null,
  ];
}

// The nodes of the kernel, so that those under suspicion stand among the others.
function nodesOf(f) {
  const kernel = f.graph !== null && f.launch !== null ? kernelOf(f.graph, f.launch) : null;
  return kernel ? [...new Set([...kernel.nodes, ...f.nodes])] : f.nodes;
}

function restOf(rest) {
  const entries = Object.entries(rest);
  if (!entries.length) return null;
  return h("details", { class: "rest" }, h("summary", {}, "More evidence"), facts(entries.map(([name, value]) => [name, plainValue(value)])));
}

function plainValue(value) {
  if (typeof value === "string" && value.includes("\n")) return h("pre", {}, value);
  if (value === null || typeof value !== "object") return code(short(value));
  const flat = Array.isArray(value) && value.every((v) => v === null || typeof v !== "object");
  return flat ? code(value.map((v) => short(v)).join(", ")) : h("pre", {}, JSON.stringify(value, null, 1));
}
