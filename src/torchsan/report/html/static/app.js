// The frame: views by address, keys, themes, printing.

const VIEWS = [
  ["verdict", "Verdict", verdictView], ["findings", "Findings", findingsView], ["program", "Program", programView],
  ["memory", "Memory", memoryView], ["values", "Values", valuesView], ["artifacts", "Artifacts", artifactsView],
];
const KEYS = [
  ["1 … 6", "the views, from Verdict to Artifacts"], ["← →", "in a chart: the step or value before and after; in the list of views: the view beside it"],
  ["j k", "the next and the previous item of a list; Enter opens it"], ["/", "search all names; ↑ ↓ choose, Enter opens, Esc leaves"],
  ["b", "back to where you were"], ["t", "light or dark"], ["?", "this list"], ["Esc", "closes it"],
];
const main = document.getElementById("view");

function segments() {
  try {
    return location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return [];
  }
}

function currentView() {
  const name = segments()[0];
  return VIEWS.find(([view]) => view === name) || VIEWS[0];
}

function show() {
  const [name, title, render] = currentView();
  const rest = segments().slice(1).map((s) => (s === "" ? undefined : s));
  main.replaceChildren();
  append(main, [render(...rest)]);
  main.dataset.view = name;
  for (const item of document.querySelectorAll("#views a")) {
    if (item.getAttribute("href") === `#${name}`) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  document.title = `${title} – torchsan: ${index.verdict.status}`;
  window.scrollTo(0, 0);
}

function setUpViews() {
  const list = document.getElementById("views");
  VIEWS.forEach(([name, title], i) => {
    const n = name === "findings" ? ` (${index.findings.length})` : "";
    list.append(h("li", {}, h("a", { href: `#${name}`, title: `${title} (${i + 1})` }, title + n)));
  });
  list.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move === undefined) return;
    const items = [...list.querySelectorAll("a")];
    const next = items[(items.indexOf(document.activeElement) + move + items.length) % items.length];
    location.hash = next.getAttribute("href");
    next.focus();
    event.preventDefault();
  });
  document.getElementById("status").append(statusBadge());
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function changeTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  labelTheme();
  window.dispatchEvent(new Event("redraw"));
}

function labelTheme() {
  document.getElementById("theme").textContent = isDark() ? "☀ Light" : "☾ Dark";
}

function showKeys() {
  const dialog = document.getElementById("keys");
  dialog.replaceChildren(h("h2", { id: "keys-title" }, "Keys"), facts(KEYS.map(([key, text]) => [h("kbd", {}, key), text])),
    h("button", { type: "button", on: { click: () => dialog.close() } }, "Close"));
  dialog.showModal();
}

// The links of the list that is looked at, or of the view: what j and k go through.
function listItems() {
  const items = [...main.querySelectorAll("a.item")];
  return items.length ? items : [...main.querySelectorAll("td.name a, ul.found > li > a")];
}

function moveInList(step) {
  const items = listItems();
  if (!items.length) return;
  const current = main.querySelector("a.item[aria-current]");
  const at = items.includes(document.activeElement) ? items.indexOf(document.activeElement) : items.indexOf(current);
  const next = items[Math.max(0, Math.min(items.length - 1, at + step))];
  if (next.classList.contains("item") && main.dataset.view === "findings") {
    location.hash = next.getAttribute("href");
    requestAnimationFrame(() => main.querySelector("a.item[aria-current]")?.focus());
  } else next.focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea, dialog")) return;
  const digit = Number(event.key);
  if (digit >= 1 && digit <= VIEWS.length) location.hash = VIEWS[digit - 1][0];
  else if (event.key === "/") document.getElementById("search").focus();
  else if (event.key === "?") showKeys();
  else if (event.key === "t") changeTheme();
  else if (event.key === "j") moveInList(1);
  else if (event.key === "k") moveInList(-1);
  else if (event.key === "b") history.back();
  else return;
  event.preventDefault();
}

// Paper has no views to change between: verdict, findings and the table of kernels are printed together.
function setUpPrinting() {
  const paper = h("div", { class: "paper" });
  window.addEventListener("beforeprint", () => {
    paper.replaceChildren();
    append(paper, [verdictView(), index.findings.slice(0, 50).map((f) => h("article", {}, findingPage(f))), index.graphs.length ? kernelTable(null, "", false) : null]);
    document.body.append(paper);
  });
  window.addEventListener("afterprint", () => paper.remove());
}

setUpViews();
setUpSearch();
setUpPrinting();
labelTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { labelTheme(); window.dispatchEvent(new Event("redraw")); });
window.addEventListener("resize", () => window.dispatchEvent(new Event("redraw")));
window.addEventListener("hashchange", show);
document.addEventListener("keydown", onKey);
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
show();
