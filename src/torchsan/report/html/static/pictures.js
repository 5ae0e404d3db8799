// The evidence of a finding as pictures. Each has a caption that says the same in words.

function figure(title, caption, ...content) {
  return h("figure", {}, h("figcaption", {}, h("b", {}, title), caption ? h("span", {}, caption) : null), content);
}

const PICTURES = {
  map(p, finding) {
    const differs = finding.kind === "nondeterministic";
    const fit = (room, cells) => Math.max(3, Math.min(28, Math.floor(room / cells)));
    const [cell, tall] = [fit(290, p.across), fit(220, p.down)];
    const [width, height] = [p.across * cell, p.down * tall];
    const edge = (i, cells, size) => Math.floor((i * size) / cells);
    const hovered = h("p", { class: "dim hovered" }, "Point at a cell to see what it holds.");
    const size = (i, j) => (edge(i + 1, p.down, p.rows) - edge(i, p.down, p.rows)) * (edge(j + 1, p.across, p.columns) - edge(j, p.across, p.columns));
    const cells = p.cells.map((n, k) => [n, Math.floor(k / p.across), k % p.across]).filter(([n]) => n > 0);
    const picture = svg("svg", {
      class: "map", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Map of ${differs ? "differing" : "wrong"} elements: ${p.bad} of ${p.elements}, ${p.pattern}`,
      on: { mousemove: (event) => {
        const box = picture.getBoundingClientRect();
        const j = Math.min(p.across - 1, Math.floor(((event.clientX - box.left) / box.width) * p.across));
        const i = Math.min(p.down - 1, Math.floor(((event.clientY - box.top) / box.height) * p.down));
        if (i < 0 || j < 0) return;
        const rows = `${edge(i, p.down, p.rows)}–${edge(i + 1, p.down, p.rows) - 1}`;
        const columns = `${edge(j, p.across, p.columns)}–${edge(j + 1, p.across, p.columns) - 1}`;
        hovered.textContent = `rows ${rows}, columns ${columns}: ${p.cells[i * p.across + j]} of ${size(i, j)} ${differs ? "differ" : "wrong"}`;
      } },
    }, cells.map(([n, i, j]) => svg("rect", {
      class: "bad", x: j * cell, y: i * tall, width: cell, height: tall, opacity: (0.3 + (0.7 * n) / size(i, j)).toFixed(2),
    })));
    const sizes = p.shape.map((n, i) => [n, i]).filter(([n]) => n !== 1).map(([, i]) => i);
    const across = `across: dimension ${sizes.at(-1) ?? 0} (${p.columns.toLocaleString("en")})`;
    const down = p.rows > 1 ? `down: dimension${sizes.length > 2 ? "s" : ""} ${sizes.slice(0, -1).join(", ")} (${p.rows.toLocaleString("en")} rows); ` : "";
    const meaning = differs ? "hold elements that differ, the darker the more; empty ones are the same" : "hold wrong elements, the darker the more; empty ones are right";
    return figure(differs ? "Where the launches differ" : "Where it is wrong",
      `${short(p.bad)} of ${short(p.elements)} elements of [${p.shape.join(", ")}]: ${p.pattern ?? ""}. Filled cells ${meaning}.`,
      picture, h("p", { class: "dim" }, down + across), hovered);
  },

  errors(p) {
    const names = p.counts.map((_, i) => i === 0 ? `< ${power(p.decades[0])}` : i === p.counts.length - 1 ? `≥ ${power(p.decades[i - 1])}` : power(p.decades[i - 1]));
    const [wide, high, left, bottom] = [narrow() ? 25 : 40, 96, narrow() ? 24 : 4, 34];
    const top = Math.max(...p.counts.map((n) => Math.log10(1 + n)), 1);
    const bars = p.counts.flatMap((n, i) => {
      const tall = n ? Math.max(2, (high * Math.log10(1 + n)) / top) : 0;
      const beyond = i > 0 && p.decades[i - 1] >= 0;
      const x = left + i * wide;
      return [
        svg("rect", { class: beyond ? "bad" : "fine", x: x + 3, y: 18 + high - tall, width: wide - 6, height: tall }),
        n ? svg("text", { x: x + wide / 2, y: 18 + high - tall - 4, "text-anchor": "middle" }, compact(n)) : null,
        svg("text", { class: "axis", x: x + wide / 2, y: 18 + high + 14, "text-anchor": "middle" }, narrow() && i % 2 ? "" : names[i]),
      ];
    });
    const limit = left + (p.decades.indexOf(0) + 1) * wide;
    const width = left * 2 + p.counts.length * wide;
    const over = p.counts.slice(p.decades.indexOf(0) + 1).reduce((a, b) => a + b, 0);
    const within = p.counts.slice(0, p.decades.indexOf(0) + 1).reduce((a, b) => a + b, 0);
    return figure("The errors against what rounding allows",
      `${compact(over)} elements are further from float64 than rounding explains, ${compact(within)} are within it, ${compact(p.same)} agree with eager to the last bits. To the right of the line is what rounding cannot do; heights are logarithmic.`,
      svg("svg", { class: "bars", viewBox: `0 0 ${width} ${high + 18 + bottom}`, width, height: high + 18 + bottom, role: "img", "aria-label": `Histogram of errors: ${over} elements beyond what rounding allows, ${within} within` },
        bars,
        svg("line", { class: "limit", x1: limit, x2: limit, y1: 4, y2: 18 + high + 4 }),
        svg("text", { class: "axis", x: limit - 4, y: 12, "text-anchor": "end" }, "rounding ends here"),
        svg("text", { class: "axis", x: width / 2, y: high + 18 + 30, "text-anchor": "middle" }, "error, in multiples of what is allowed")));
  },

  samples(p, finding) {
    const what = finding.kind === "nondeterministic" ? "differing element" : "wrong element";
    const float64 = p.rows.some((row) => row[3] !== null);
    const allowed = p.rows.some((row) => row[4] !== null);
    const heads = ["at", ...p.names, float64 && "float64", float64 && "error", allowed && "allowed", allowed && float64 && "ratio"];
    const rows = p.rows.map(([at, compiled, eager, exact, limit]) => {
      const error = typeof compiled === "number" && typeof exact === "number" ? Math.abs(compiled - exact) : null;
      const times = error !== null && limit ? error / limit : null;
      const cells = [code(`[${at}]`), short(compiled, 9), short(eager, 9)];
      if (float64) cells.push(short(exact, 9), short(error, 3));
      if (allowed) cells.push(short(limit, 3));
      if (allowed && float64) cells.push(times === null ? "–" : `${short(times, 3)} ×`);
      return h("tr", {}, cells.map((cell) => h("td", { class: "number" }, cell)));
    });
    return figure("Side by side", `${p.rows.length < p.bad ? `${p.rows.length} of ${count(p.bad, what)}` : count(p.rows.length, what)}, from the first to the last.`,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Elements side by side" }, table(heads.filter(Boolean), rows, { class: "grid numbers" })));
  },

  bounds(p) {
    const [width, zone] = narrow() ? [320, 76] : [520, 90];
    const box = (kind, x, w, text) => [svg("rect", { class: kind, x, y: 20, width: w, height: 30 }), svg("text", { x: x + w / 2, y: 40, "text-anchor": "middle" }, text)];
    return figure("Outside of the buffer", `The buffer has ${count(p.elements, "element")}; ${p.before} were written before its start and ${p.after} after its end.`,
      svg("svg", { class: "bounds", viewBox: `0 0 ${width} 74`, width, height: 74, role: "img", "aria-label": `${p.before} elements written before the start, ${p.after} after the end of ${p.elements}` },
        box(p.before ? "bad" : "zone", 0, zone, p.before ? `✕ ${compact(p.before)}` : "untouched"),
        box("buffer", zone, width - 2 * zone, `${compact(p.elements)} elements`),
        box(p.after ? "bad" : "zone", width - zone, zone, p.after ? `✕ ${compact(p.after)}` : "untouched"),
        svg("text", { class: "axis", x: zone / 2, y: 14, "text-anchor": "middle" }, "before"),
        svg("text", { class: "axis", x: width - zone / 2, y: 14, "text-anchor": "middle" }, "after")));
  },

  diff(p) {
    const kinds = (line) => /^(\+\+\+|---) /.test(line) ? "dim" : { "+": "added", "-": "removed" }[line[0]] || "";
    return figure("What the pass did to the graph", "Lines with − were taken out, lines with + put in.",
      h("div", { class: "code diff", role: "region", tabindex: "0", "aria-label": "Diff of the graph" },
        p.lines.map((line) => h("div", { class: `row ${kinds(line)}` }, h("code", {}, highlight(line, "python"))))));
  },

  chain(p) {
    return figure("Who holds the memory", "From what has a name down to the tensor: each holds the next.",
      h("ol", { class: "chain" }, p.holders.map((holder) => h("li", {}, code(holder)))));
  },

  table(p) {
    const rows = p.rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, code(cell)))));
    return figure("Said and done", "What the operator really does, and what its fake kernel or schema says.",
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences" }, table(["what", "field", "real", "believed", "against"], rows, { class: "grid" })));
  },
};

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (n) => n === 0 ? "1" : n === 1 ? "10" : "10" + [...String(n)].map((c) => SUPERSCRIPTS[c] || c).join("");
const compact = (n) => typeof n === "number" ? new Intl.NumberFormat("en", { notation: "compact" }).format(n) : String(n);

function pictures(finding) {
  const found = finding.pictures.map((p) => PICTURES[p.picture](p, finding));
  return found.length ? h("div", { class: "pictures" }, found) : null;
}
