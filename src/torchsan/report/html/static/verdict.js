// Verdict: what was run, what was found, what was checked and what was not.

function worst(findings) {
  return ["error", "warning", "note"].find((severity) => findings.some((f) => f.severity === severity));
}

function causes(findings) {
  return findings.filter((f) => !findings.some((other) => other.id === f.follows));
}

function tally(findings) {
  const own = causes(findings);
  const parts = ["error", "warning", "note"].map((s) => [s, own.filter((f) => f.severity === s).length]);
  const text = parts.filter(([, n]) => n).map(([s, n]) => count(n, s)).join(", ");
  const more = findings.length - own.length;
  return more ? `${text}, and ${more} that ${more === 1 ? "follows" : "follow"} from ${own.length === 1 ? "it" : "them"}` : text;
}

function statusBadge() {
  const { status } = index.verdict;
  if (status === "findings") return badge("error", tally(causes(index.findings)));
  return status === "clean" ? badge("right", "clean") : badge("warning", "incomplete");
}

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value.length !== 0)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function verdictView() {
  const { verdict, run, findings, coverage } = index;
  const words = {
    findings: `torchsan found ${tally(findings)} in this run.`,
    clean: findings.length ? `No errors; ${tally(findings)}.` : "Everything that was checked is right.",
    incomplete: "The run is incomplete: that nothing more was found means nothing.",
  };
  const share = coverage.buffers ? coverage.buffers_checked / coverage.buffers : 0;
  return [
    h("h1", {}, "Verdict"),
    h("p", { class: "lead" }, words[verdict.status] || verdict.status),
    verdict.reasons.length ? h("ul", {}, verdict.reasons.map((reason) => h("li", {}, reason))) : null,
    h("div", { class: "cards two" },
      h("section", { class: "card wide", "aria-labelledby": "found" }, h("h2", { id: "found" }, "What was found"), foundList()),
      h("section", { class: "card", "aria-labelledby": "run" }, h("h2", { id: "run" }, "What was run"), facts([
        ["command", code(run.command)], ["folder", code(run.cwd)], ["started", run.started], ["program's exit status", exitText(verdict.program)],
        ["PyTorch", run.torch], ["Python", run.python], ["machine", run.platform], ["torchsan", run.torchsan], ["seed", run.seed],
        ["options", Object.entries(run.options).map(([k, v]) => h("div", {}, code(`${k} = ${Array.isArray(v) ? v.join(", ") : v}`)))],
        ["environment", Object.entries(run.environment).map(([k, v]) => h("div", {}, code(`${k}=${v}`)))],
      ])),
      h("section", { class: "card", "aria-labelledby": "checked" }, h("h2", { id: "checked" }, "What was checked"), facts([
        ["checks", [].concat(run.options.check || []).join(", ")],
        ["graphs", link("#program", coverage.graphs)], ["kernels", link("#program", coverage.kernels)],
        ["buffers", [`${coverage.buffers_checked} of ${coverage.buffers} checked`, meter(share)]],
        ["calls", coverage.calls.map(([id, direction, seen, checked]) => h("div", {}, `graph ${id} ${direction}: ${checked} of ${seen} checked`))],
        ["operators", `${coverage.ops_checked} checked against their metadata`],
        ["memory", index.memory.calls ? link("#memory", count(index.memory.calls, "call")) : "not followed"],
        ["values", index.values.all ? link("#values", `${index.values.all.toLocaleString("en")} watched`) : "not watched (--watch save)"],
      ])),
      coverage.gaps.length ? h("section", { class: "card wide", "aria-labelledby": "gaps" }, h("h2", { id: "gaps" }, "What was not compiled, or more than once"), gapList()) : null,
      h("section", { class: "card wide", "aria-labelledby": "skipped" }, h("h2", { id: "skipped" }, "What was not checked"), skippedList())),
  ];
}

function exitText(program) {
  return program.signal !== null ? `killed by signal ${program.signal}` : program.exit === null ? "not known" : String(program.exit);
}

function meter(share) {
  return h("div", { class: "meter", "aria-hidden": "true" }, h("div", { style: { width: `${Math.round(100 * share)}%` } }));
}

const GAPS = { "graph-break": "graph break", recompile: "compiled again", eager: "runs as plain Python" };

function gapList() {
  const item = ([kind, name, line, reason, times]) => h("li", {}, h("b", {}, GAPS[kind] || kind), name ? [" in ", code(name)] : null, times > 1 ? ` (${times} times)` : "", ": ", reason,
    line !== null ? h("div", { class: "dim" }, lineText(line)) : null);
  return paged(index.coverage.gaps, item, 12, () => h("ul", { class: "found" }));
}

function foundList() {
  const findings = index.findings.filter((f) => !f.follows);
  if (!findings.length) return h("p", {}, "Nothing.");
  const follow = (f) => index.findings.filter((other) => other.follows === f.id);
  const item = (f) => h("li", {}, badge(f.severity, f.id), " ", link(to("findings", f.id), f.kind), " ", h("span", {}, f.message),
    f.source.length ? h("div", { class: "dim" }, lineText(f.source[0])) : null,
    follow(f).length ? h("div", { class: "dim" }, "from it follows ", follow(f).map((other, i) => [i ? ", " : "", link(to("findings", other.id), `${other.id} ${other.kind}`)])) : null);
  return paged(findings, item, 12, () => h("ul", { class: "found" }));
}

function lineText(number) {
  const line = sourceLine(number);
  return [link(line.route, `${line.path}:${line.line}`), " ", code(line.text)];
}

function skippedList() {
  const { skipped, reasons } = index.coverage;
  if (!skipped.length) return h("p", {}, "Nothing was left out.");
  const item = ([reason, n, names]) => h("details", {}, h("summary", {}, n > 1 ? `${n} × ${reason}` : reason),
    h("p", { class: "dim" }, names.join(", "), n > names.length ? ` … and ${n - names.length} more` : ""));
  return [paged(skipped, item, 12, () => h("div", {})), reasons > skipped.length ? h("p", { class: "dim" }, `${reasons - skipped.length} more reasons are in the recording`) : null];
}
