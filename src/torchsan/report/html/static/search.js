// Search over all names: findings, kernels, operators, nodes, buffers, modules, source files, artifacts.

let names = null;

async function allNames() {
  if (names) return names;
  const found = new Map();
  const add = (kind, name, route) => { if (name && !found.has(`${kind} ${name}`)) found.set(`${kind} ${name}`, { kind, name, route, low: name.toLowerCase() }); };
  index.findings.forEach((f) => add("finding", `${f.id} ${f.kind} ${f.kernel || f.pass || ""}`.trim(), to("findings", f.id)));
  index.graphs.forEach((g, i) => {
    g.kernels.forEach((k) => {
      add("kernel", k.name, k.kind === "fused" ? kernelRoute(i, k.nth) : to("program", "find", k.name));
      k.ops.forEach((op) => add("operator", op, to("program", "find", op)));
      k.writes.forEach(([name]) => add("buffer", `${name} of graph ${graphLabel(i)}`, kernelRoute(i, k.nth)));
    });
    g.inputs.forEach((name) => add("input", `${name} of graph ${graphLabel(i)}`, to("program", "find", name)));
  });
  index.files.forEach(([path], i) => add("source file", path, to("artifacts", `file-${i}`)));
  index.lines.forEach(([file, line, text, module], n) => {
    add("module", module, sourceLine(n).route);
    add("source line", text && `${base(index.files[file][0])}:${line} ${text}`, sourceLine(n).route);
  });
  index.artifacts.forEach((a, i) => { if (a.kind !== "source file" && a.kind !== "kernel") add(a.kind, a.name, to("artifacts", i)); });
  const nodes = await Promise.all(index.graphs.map((_, i) => part(`nodes-${i}`)));
  nodes.forEach((list, i) => list.forEach((node) => {
    const text = index.graphs[i].artifacts.graph;
    add("node", `${node[0]} of graph ${graphLabel(i)}`, text !== undefined && node[5] ? to("artifacts", text, node[5]) : to("program", "find", node[0]));
    if (/^[a-z_]\w*\.\w/.test(node[1])) add("operator", node[1], to("program", "find", node[1]));
  }));
  names = [...found.values()];
  return names;
}

// Names that begin with what is wanted come first, then words in them, then the rest; short ones before long ones.
function rank(name, wanted) {
  const at = name.low.indexOf(wanted);
  if (at < 0) return null;
  return (at === 0 ? 0 : /\W|_/.test(name.low[at - 1]) ? 1 : 2) * 1000 + Math.min(999, name.low.length);
}

async function search(wanted, most) {
  const low = wanted.trim().toLowerCase();
  if (!low) return [];
  const found = [];
  for (const name of await allNames()) {
    const order = rank(name, low);
    if (order !== null) found.push([order, name]);
  }
  found.sort((a, b) => a[0] - b[0]);
  return found.slice(0, most).map(([, name]) => name);
}

function setUpSearch() {
  const field = document.getElementById("search");
  const results = document.getElementById("results");
  let turn = 0;
  let chosen = -1;
  const close = () => { results.hidden = true; field.setAttribute("aria-expanded", "false"); chosen = -1; };
  const choose = (n) => {
    const items = results.querySelectorAll("a");
    if (!items.length) return;
    chosen = (n + items.length) % items.length;
    items.forEach((item, i) => item.setAttribute("aria-selected", String(i === chosen)));
    items[chosen].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", items[chosen].id);
  };
  field.addEventListener("input", async () => {
    const mine = ++turn;
    const found = await search(field.value, 60);
    if (mine !== turn) return;
    results.replaceChildren(...(found.length ? found.map((name, i) => h("a", { href: name.route, role: "option", id: `result-${i}`, class: "item", "aria-selected": "false", tabindex: "-1" },
      h("span", { class: "tag" }, name.kind), " ", name.name)) : [h("p", { class: "dim" }, "no name fits")]));
    results.hidden = !field.value.trim();
    field.setAttribute("aria-expanded", String(!results.hidden));
    chosen = -1;
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter") {
      const items = results.querySelectorAll("a");
      const item = items[Math.max(0, chosen)];
      if (item && !results.hidden) { location.hash = item.getAttribute("href"); close(); field.blur(); }
    } else if (event.key === "Escape") { close(); field.blur(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  results.addEventListener("click", close);
  document.addEventListener("click", (event) => { if (!event.target.closest("[role=search]")) close(); });
}
