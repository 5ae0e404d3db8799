// Values: watched tensors through the program, as strips: range, NaN, Inf, zeros.

function valuesView(filter) {
  if (!index.values.all) return [h("h1", {}, "Values"), h("p", {}, "Nothing was watched: record it with ", code("--watch save"), " or ", code("--watch print"), ".")];
  return [h("h1", {}, "Values"), later(part("values"), (values) => valuesPage(values, filter || ""))];
}

function valuesPage(values, filter) {
  const c = values.columns;
  const n = c.graph.length;
  const strips = h("div", {});
  const rows = h("div", {});
  const select = (label, options) => h("select", { "aria-label": label, on: { change: show } }, options.map(([value, text]) => h("option", { value }, text)));
  const graph = select("Graph", [["", "all graphs"], ...index.graphs.map((_, i) => [i, `graph ${graphLabel(i)}`]), ["-1", "probes"]]);
  const calls = [...new Set(c.call)].sort((a, b) => a - b);
  const call = select("Call", [["", "all calls"], ...calls.slice(0, 200).map((k) => [k, `call ${k}`])]);
  const side = select("When", [["1", "after the launch"], ["0", "before the launch"], ["", "before and after"]]);
  const only = select("Which", [["", "all values"], ["odd", "with NaN or Inf"]]);
  const input = h("input", { type: "search", value: filter, placeholder: "kernel, variable, node", "aria-label": "Filter values", on: { input: show } });
  const text = (i) => values.texts[c.kernel[i]] + "\n" + values.texts[c.name[i]] + "\n" + values.texts[c.node[i]];
  function show() {
    const wanted = input.value.trim().toLowerCase();
    const chosen = [];
    for (let i = 0; i < n; i++) {
      if (graph.value !== "" && c.graph[i] !== Number(graph.value)) continue;
      if (call.value !== "" && c.call[i] !== Number(call.value)) continue;
      if (side.value !== "" && c.after[i] !== Number(side.value)) continue;
      if (only.value && !(c.nan[i] || c.posinf[i] || c.neginf[i])) continue;
      if (wanted && !text(i).toLowerCase().includes(wanted)) continue;
      chosen.push(i);
    }
    strips.replaceChildren(stripPicture(values, chosen.filter((i) => c.count[i] !== null)));
    rows.replaceChildren(h("p", { class: "dim" }, `${count(chosen.length, "value")} of ${values.all.toLocaleString("en")}`,
      values.all > n ? `; the page has the first ${n.toLocaleString("en")}` : ""), valueTable(values, chosen));
  }
  show();
  return [h("div", { class: "bar" }, graph, call, side, only, input), strips, rows];
}

function describeValue(values, i) {
  const c = values.columns;
  const where = c.graph[i] < 0 ? `probe #${c.call[i]}` : `graph ${graphLabel(c.graph[i])}, call ${c.call[i]}${c.launch[i] === null ? "" : `, launch ${c.launch[i]}`}`;
  const odd = [["NaN", c.nan[i]], ["+Inf", c.posinf[i]], ["−Inf", c.neginf[i]], ["zeros", c.zeros[i]]].filter(([, k]) => k).map(([name, k]) => `${name} ${k}`).join(", ");
  const range = c.minimum[i] === null ? "no finite element" : `${short(c.minimum[i])} … ${short(c.maximum[i])}, mean ${short(c.mean[i])}, std ${short(c.std[i])}`;
  return `${where}: ${values.texts[c.kernel[i]]} ${c.after[i] ? "after" : "before"} ${values.texts[c.name[i]]} ${values.texts[c.type[i]]}: ${range}${odd ? `; ${odd}` : ""}`;
}

// Ranges go over many orders of magnitude: the scale is that of asinh, linear about zero and logarithmic far from it.
const SCALE = 100;
const scaled = (v) => Math.asinh((typeof v === "number" ? v : 0) * SCALE);

function stripPicture(values, chosen) {
  if (!chosen.length) return h("p", { class: "dim" }, "no tensor fits");
  const c = values.columns;
  const [left, high, row, gap] = [70, 180, 22, 8];
  const tracks = [["NaN", (i) => c.nan[i] / c.count[i], "bad"], ["Inf", (i) => (c.posinf[i] + c.neginf[i]) / c.count[i], "bad"], ["zeros", (i) => c.zeros[i] / c.count[i], "dim"]];
  const height = high + tracks.length * (row + gap) + 26;
  const low = Math.min(0, ...bounds(chosen, (i) => scaled(c.minimum[i]), Math.min));
  const top = Math.max(0, ...bounds(chosen, (i) => scaled(c.maximum[i]), Math.max));
  const canvas = h("canvas", { class: "strips", tabindex: "0", role: "img", "aria-label": `Ranges of ${chosen.length} values; arrow keys move between them. The table below has the numbers.` });
  const info = h("p", { class: "hovered", role: "status" }, "Point at a value, or use ← and →.");
  let at = null;
  function draw() {
    const width = Math.max(300, canvas.clientWidth || 900);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const x = (k) => left + ((width - left) * k) / chosen.length;
    const y = (v) => high - 4 - ((high - 8) * (v - low)) / Math.max(top - low, 1e-9);
    const wide = Math.max(1, (width - left) / chosen.length - ((width - left) / chosen.length > 4 ? 1 : 0));
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = colour("text");
    for (const v of new Set([low, 0, top])) pen.fillText(short(Math.sinh(v) / SCALE, 3), 2, Math.min(high - 2, y(v) + 9));
    pen.strokeStyle = colour("border");
    pen.strokeRect(left, 0.5, width - left - 1, high);
    pen.beginPath();
    pen.moveTo(left, y(0));
    pen.lineTo(width, y(0));
    pen.stroke();
    chosen.forEach((i, k) => {
      if (c.minimum[i] !== null) {
        pen.fillStyle = colour("accent");
        const [a, b] = [y(scaled(c.maximum[i])), y(scaled(c.minimum[i]))];
        pen.fillRect(x(k), a, wide, Math.max(2, b - a));
      }
    });
    tracks.forEach(([name, share, kind], t) => {
      const bottom = high + (t + 1) * (row + gap);
      pen.fillStyle = colour("text");
      pen.fillText(name, 2, bottom - 6);
      pen.strokeRect(left, bottom - row, width - left - 1, row);
      pen.fillStyle = colour(kind === "bad" ? "error" : "dim");
      chosen.forEach((i, k) => {
        const part = share(i);
        if (part > 0) pen.fillRect(x(k), bottom - Math.max(3, row * part), Math.max(wide, kind === "bad" ? 3 : 1), Math.max(3, row * part));
      });
    });
    graphEdges(chosen, c).forEach(([k, label]) => {
      pen.fillStyle = colour("dim");
      pen.fillRect(x(k), 0, 1, height - 22);
      pen.fillText(label, x(k) + 3, height - 6);
    });
    if (at !== null) {
      pen.strokeStyle = colour("text");
      pen.strokeRect(x(at) - 0.5, 0.5, wide + 1, height - 24);
    }
  }
  function choose(k) {
    at = Math.max(0, Math.min(chosen.length - 1, k));
    info.textContent = describeValue(values, chosen[at]);
    draw();
  }
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    choose(Math.floor(((event.clientX - box.left - left) / (box.width - left)) * chosen.length));
  });
  canvas.addEventListener("click", () => {
    if (at !== null && c.site[chosen[at]] !== null) location.hash = kernelRoute(c.graph[chosen[at]], c.site[chosen[at]]);
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (move === undefined && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") canvas.click();
    else choose((at ?? -1) + move);
  });
  window.addEventListener("redraw", () => { if (canvas.isConnected) draw(); });
  requestAnimationFrame(draw);
  return h("figure", {}, h("figcaption", {}, h("b", {}, "Through the program, from left to right"),
    h("span", {}, "Each bar goes from the least to the greatest finite element; below it, the share of NaN, infinite and zero elements. A click opens the kernel.")), canvas, info);
}

// A spread of 20,000 arguments would be too many for Math.min.
function bounds(chosen, value, pick) {
  return chosen.length ? [chosen.reduce((best, i) => pick(best, value(i)), value(chosen[0]))] : [];
}

function graphEdges(chosen, c) {
  const edges = [];
  chosen.forEach((i, k) => {
    const label = c.graph[i] < 0 ? "probes" : `${graphLabel(c.graph[i])} ·${c.call[i]}`;
    if (!edges.length || edges[edges.length - 1][1] !== label) edges.push([k, label]);
  });
  return edges.length > 24 ? [] : edges;
}

function valueTable(values, chosen) {
  const c = values.columns;
  const kernel = (i) => c.site[i] === null || c.graph[i] < 0 ? values.texts[c.kernel[i]] : link(kernelRoute(c.graph[i], c.site[i]), breakable(values.texts[c.kernel[i]]));
  const row = (i) => h("tr", {}, [
    c.graph[i] < 0 ? "probe" : graphLabel(c.graph[i]), c.call[i], c.launch[i] ?? "", c.after[i] ? "after" : "before", kernel(i),
    code(values.texts[c.name[i]]), values.texts[c.node[i]], values.texts[c.type[i]],
    c.minimum[i] === null ? values.texts[c.note[i]] : `${short(c.minimum[i])} … ${short(c.maximum[i])}`,
    short(c.mean[i], 4), c.nan[i] ? h("b", {}, `${c.nan[i]} NaN`) : c.nan[i], c.posinf[i] + c.neginf[i] ? h("b", {}, `${c.posinf[i] + c.neginf[i]} Inf`) : c.count[i] === null ? "" : 0, c.zeros[i],
    c.elements[i] ? h("details", {}, h("summary", {}, "elements"), code(c.elements[i])) : "",
  ].map((cell) => h("td", {}, cell ?? "")));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Watched values" }, paged(chosen, row, 100, () => table(
    ["graph", "call", "launch", "when", "kernel", "variable", "node", "type", "range", "mean", "NaN", "Inf", "zeros", "elements"], [], { class: "grid values" })));
}

function kernelValues(values, graph, kernel) {
  const c = values.columns;
  const chosen = [];
  for (let i = 0; i < c.graph.length; i++) if (c.graph[i] === graph && c.site[i] === kernel.nth) chosen.push(i);
  return chosen.length ? [h("h2", {}, "Watched values"), valueTable(values, chosen)] : h("p", {});
}
