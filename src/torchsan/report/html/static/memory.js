// Memory: bytes live over the steps of a call, planned and actual; the peak, and what was alive at each step.

function memoryView(chosen) {
  if (!index.memory.calls) return [h("h1", {}, "Memory"), h("p", {}, "No call was followed: record it with ", code("--check memory"), ".")];
  return [h("h1", {}, "Memory"), later(part("memory"), (calls) => {
    let number = Number(chosen);
    if (!Number.isInteger(number) || !calls[number]) {
      number = calls.reduce((best, call, i) => (call.figures.peak > calls[best].figures.peak ? i : best), 0);
    }
    const select = h("select", { "aria-label": "Call", on: { change: () => { location.hash = to("memory", select.value); } } },
      calls.map((call, i) => h("option", { value: i }, `graph ${call.label}, call ${call.call}: peak ${bytes(call.figures.peak)}`)));
    select.value = String(number);
    return [h("p", { class: "bar" }, h("label", {}, "Call ", select)), ...memoryCall(calls[number])];
  })];
}

function memoryCall(call) {
  const f = call.figures;
  const names = { peak: "peak", planned_peak: "planned peak", allocated: "allocated in all", given: "given by the caller", saved: "saved for backward", returned: "returned" };
  const info = h("div", { class: "card", role: "status", "aria-label": "Buffers at this step" });
  const chart = call.actual.length ? memoryChart(call, info) : h("p", { class: "dim" }, "no steps were recorded");
  return [
    h("div", { class: "memory" }, h("figure", {}, h("figcaption", {}, h("b", {}, `Bytes live in graph ${call.label}, call ${call.call}`),
      h("span", {}, "Solid: actual. Dashed: planned. Point at a step, or use ← and →, to see its buffers; what the caller gave is not counted.")), chart), info),
    h("div", { class: "cards" },
      h("section", { class: "card" }, h("h2", {}, "Figures"), facts(Object.entries(names).map(([k, name]) => [name, bytes(f[k])]))),
      h("section", { class: "card" }, h("h2", {}, "At the peak, by module"), barList(call.by_module.map(([m, n]) => [m || "(no module)", n]))),
      h("section", { class: "card" }, h("h2", {}, "At the peak, by line"), barList(call.by_line.map(([n, size]) => [n === null ? "elsewhere" : lineLink(n), size])))),
  ];
}

function lineLink(number) {
  const line = sourceLine(number);
  return [link(line.route, `${line.path}:${line.line}`), line.module ? h("span", { class: "dim" }, ` ${line.module}`) : null];
}

function barList(items) {
  if (!items.length) return h("p", { class: "dim" }, "nothing");
  const most = Math.max(...items.map(([, n]) => n), 1);
  return paged(items, ([name, n]) => h("li", {}, h("span", {}, name), h("span", { class: "number" }, bytes(n)), meter(n / most)), 15, () => h("ul", { class: "barlist" }));
}

function memoryChart(call, info) {
  const [width, height, left, bottom, top] = [narrow() ? 360 : 900, narrow() ? 260 : 360, 74, 30, 40];
  const n = call.actual.length;
  const most = Math.max(...call.actual, ...call.planned, 1);
  const x = (i) => left + ((width - left - 10) * i) / Math.max(1, n);
  const y = (v) => top + (height - top - bottom) * (1 - v / most);
  const steps = (values) => values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)},${y(v).toFixed(1)}H${x(i + 1).toFixed(1)}`).join("");
  const peak = call.actual.indexOf(Math.max(...call.actual));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => [
    svg("line", { class: "rule", x1: left, x2: width - 10, y1: y(share * most), y2: y(share * most) }),
    svg("text", { class: "axis", x: left - 6, y: y(share * most) + 4, "text-anchor": "end" }, bytes(share * most)),
  ]);
  const cursor = svg("line", { class: "cursor", x1: 0, x2: 0, y1: top, y2: height - bottom });
  let at = peak;
  const picture = svg("svg", {
    class: "chart", viewBox: `0 0 ${width} ${height}`, role: "application", tabindex: "0",
    "aria-label": `Bytes live over ${n} steps; peak ${bytes(most)} at step ${peak}. Arrow keys move between steps.`,
    on: {
      mousemove: (event) => {
        const box = picture.getBoundingClientRect();
        choose(Math.floor((((event.clientX - box.left) / box.width) * width - left) / ((width - left - 10) / n)));
      },
      keydown: (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -n, End: n }[event.key];
        if (move === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        choose(at + move);
      },
    },
  },
  ticks,
  svg("path", { class: "area", d: `M${x(0)},${y(0)}${steps(call.actual).replace(/^M/, "L")}L${x(n)},${y(0)}Z` }),
  svg("path", { class: "actual", d: steps(call.actual) }),
  svg("path", { class: "planned", d: steps(call.planned) }),
  svg("path", { class: "peak", d: `M${x(peak + 0.5) - 6},${y(call.actual[peak]) - 12}h12l-6,9z` }),
  svg("text", { class: "peaktext", x: Math.min(width - 60, Math.max(left + 60, x(peak + 0.5))), y: 18, "text-anchor": "middle" }, `peak ${bytes(call.actual[peak])}`),
  svg("text", { class: "axis", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, `${n} steps of the call`),
  cursor);
  function choose(i) {
    at = Math.max(0, Math.min(n - 1, i));
    cursor.setAttribute("x1", x(at + 0.5));
    cursor.setAttribute("x2", x(at + 0.5));
    info.replaceChildren(...[stepInfo(call, at, at === peak)].flat().filter(Boolean));
  }
  choose(peak);
  return picture;
}

function stepInfo(call, at, peak) {
  const live = call.lives.filter(([, , born, , died]) => born <= at && (died === null || died > at)).sort((a, b) => b[1] - a[1]);
  const graph = call.graph >= 0 ? index.graphs[call.graph] : null;
  const wrapper = graph ? graph.artifacts.wrapper : undefined;
  const line = call.line[at];
  const shown = live.length ? live : peak ? call.at_peak.map(([name, n]) => [name, n, 0, null, null, ""]) : [];
  return [
    h("h2", {}, `Step ${at + 1}`, peak ? " (peak)" : ""),
    h("p", {}, `${bytes(call.actual[at])} live, ${bytes(call.planned[at])} planned; `, wrapper === undefined ? `line ${line}` : link(to("artifacts", wrapper, line), `line ${line}`), " of the wrapper"),
    shown.length ? table(["buffer", "bytes", "module"], shown.slice(0, 14).map(([name, n, , freed, , module]) => h("tr", {},
      h("td", {}, code(name), freed !== null && freed <= at ? h("span", { class: "tag" }, "given up") : null), h("td", { class: "number" }, bytes(n)), h("td", { class: "dim" }, module))), { class: "grid" }, ["bytes"])
      : h("p", { class: "dim" }, call.lives.length ? "no buffer is live" : "which buffers were live was not recorded, but for the peak"),
    shown.length > 14 ? h("p", { class: "dim" }, `and ${shown.length - 14} more`) : null,
  ];
}
