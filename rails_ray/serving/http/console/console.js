"use strict";

// The console of a server: it asks the same API as any client, from the page's own origin alone.

// SCHEMA, which the server writes above this line, has what a request may name.
const OWN_METHOD = "the version's";
const METHODS = [OWN_METHOD, ...SCHEMA.methods];
const USUAL = { top_k: 10, coverage: 0.9, mass: 0.9, nucleus: 0.5, probability: 0.01, score: 0.5 };
const CUTOFFS = { "the version's": null, ...Object.fromEntries(SCHEMA.cutoffs.map((kind) => [kind, USUAL[kind] ?? 0.5])) };
const CURVE = 100; // items of the curve, cut or not
const STAGES = ["queue", "encode", "shards", "candidates", "score", "ranker", "merge", "cut"];
const EXAMPLES = { text: "a text", history: "item ids, separated by commas", user_id: "a user's id",
  features: '{"17": 1.0}', embedding: "numbers, separated by commas",
  embeddings: '{"title": [0.1, 0.2], "body": [0.3]}' };

const byId = (id) => document.getElementById(id);
let index = null;

// A number of a cut-off as people write it; what else a cut-off says stays as it is.
function shown(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : value;
}

function made(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  const { data, ...own } = properties;
  Object.assign(element, own);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

function drawn(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

async function ask(path, body) {
  const key = byId("key").value.trim();
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const began = performance.now();
  const response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  const told = response.headers.get("server-timing") ?? "";
  const stages = Object.fromEntries([...told.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]));
  return { answer, stages, ms: performance.now() - began };
}

function tell(error) {
  byId("error").textContent = error?.message ?? "";
  byId("error").hidden = !error;
}

function queryOf(field, text) {
  const kind = index.query[field] ?? "";
  const numbers = (parts) => parts.map((part) => (part !== "" && !Number.isNaN(Number(part)) ? Number(part) : part));
  const parts = () => text.split(",").map((part) => part.trim()).filter(Boolean);
  if (field === "history") return { history: kind === "string" ? parts() : numbers(parts()) };
  if (field === "embedding") return { embedding: numbers(parts()) };
  if (field === "user_id") return { user_id: kind === "string" ? text : Number(text) };
  if (field === "embeddings") return { embeddings: JSON.parse(text) };
  if (field === "features") return { features: JSON.parse(text) };
  return { text };
}

function howOf(side) {
  const fieldset = document.querySelector(`fieldset[data-side="${side}"]`);
  const value = (name) => fieldset.querySelector(`[name="${name}"]`).value;
  const cutoff = value("cutoff");
  const how = value("method") === OWN_METHOD ? {} : { method: value("method") };
  const filter = byId("filter").value.trim();
  if (filter) how.filter = JSON.parse(filter);
  return CUTOFFS[cutoff] === null ? how : { ...how, cutoff: { [cutoff]: Number(value("value")) } };
}

async function search() {
  tell(null);
  const sides = byId("beside").checked ? ["a", "b"] : ["a"];
  if (sides.length === 1) document.querySelector('section[data-side="b"]').hidden = true;
  try {
    const query = queryOf(byId("field").value, byId("query").value.trim());
    for (const side of sides) await showSide(side, query, howOf(side));
  } catch (error) {
    tell(error);
  }
}

async function showSide(side, query, how) {
  const most = Math.min(CURVE, index.num_items);
  const shared = { queries: [query], ids: "string", fields: Object.keys(index.attributes) };
  const cut = await ask("v1/search", { ...shared, ...how });
  const best = await ask("v1/search", { ...shared, method: how.method, filter: how.filter, k: most, cutoff: { top_k: most } });
  const [own] = cut.answer.results;
  const [all] = best.answer.results;
  const section = document.querySelector(`section[data-side="${side}"]`);
  section.replaceChildren(facts(cut, own), curve(all.scores, own), stagesOf(cut), listOf(query, own, all));
  section.hidden = false;
}

function facts(cut, own) {
  const { answer } = cut;
  const { certificate } = own;
  const exact = certificate.is_exact
    ? made("span", { className: "good" }, "proven exact")
    : made("span", { className: "warn" }, certificate.gap === null ? `not proven: ${certificate.reason}`
      : `missing items score at most ${certificate.gap.toFixed(3)} higher`);
  const coverage = `${answer.coverage.items_searched} of ${answer.coverage.num_items} items searched`;
  const policy = Object.entries(answer.cutoff).map(([name, value]) => `${name} ${shown(value)}`).join(", ");
  return made("p", { className: "facts" }, `${answer.method}, ${policy}: ${own.num_kept} kept · `, exact,
    ` · ${coverage}, ${own.num_scored} scored · version ${answer.version}`);
}

function curve(scores, own) {
  const [width, height, left, low] = [600, 150, 40, 130];
  const svg = drawn("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Scores of the ${scores.length} best items; ${own.num_kept} are kept` });
  if (!scores.length) return svg;
  const [top, bottom] = [Math.max(...scores), Math.min(...scores)];
  const x = (rank) => left + ((width - left - 8) * rank) / Math.max(scores.length, 1);
  const y = (score) => 10 + ((low - 10) * (top - score)) / (top - bottom || 1);
  svg.append(drawn("line", { class: "axis", x1: left, y1: low, x2: width, y2: low }),
    drawn("line", { class: "axis", x1: left, y1: 10, x2: left, y2: low }),
    drawn("text", { x: 2, y: 14 }, top.toFixed(3)), drawn("text", { x: 2, y: low }, bottom.toFixed(3)),
    drawn("text", { x: width - 60, y: height - 4 }, `rank ${scores.length}`),
    drawn("polyline", { class: "scores", points: scores.map((score, rank) => `${x(rank + 0.5)},${y(score)}`).join(" ") }));
  if (own.num_kept < scores.length) {
    svg.append(drawn("line", { class: "cut", x1: x(own.num_kept), y1: 10, x2: x(own.num_kept), y2: low }),
      drawn("text", { x: x(own.num_kept) + 4, y: 22 }, `${own.num_kept} kept`));
  }
  if (own.threshold !== null && own.threshold <= top && own.threshold >= bottom) {
    svg.append(drawn("line", { class: "cut", x1: left, y1: y(own.threshold), x2: width, y2: y(own.threshold) }));
  }
  return svg;
}

function stagesOf({ stages, ms }) {
  const known = STAGES.filter((name) => name in stages).map((name) => [name, stages[name]]);
  const way = Math.max(ms - known.reduce((sum, [, own]) => sum + own, 0), 0);
  const bar = made("div", { className: "stages" });
  for (const [name, own] of [...known, ["way", way]]) {
    const part = made("span", { className: name, title: `${name}: ${own.toFixed(2)} ms` });
    part.style.width = `${(100 * own) / ms}%`;
    bar.append(part);
  }
  const told = [...known, ["on the way", way]].map(([name, own]) => `${name} ${own.toFixed(1)}`).join(" · ");
  return made("div", {}, bar, made("p", { className: "facts" }, `${ms.toFixed(1)} ms: ${told}`));
}

function listOf(query, own, all) {
  const list = made("ol");
  const kept = new Set(own.items.map(String));
  const rowsOf = (found) => found.items.map((item, rank) =>
    [item, found.titles?.[rank], found.scores[rank], fieldsOf(found.fields?.[rank])]);
  const rows = [...rowsOf(own), ...rowsOf(all).filter(([item]) => !kept.has(String(item)))];
  rows.slice(0, CURVE).forEach(([item, title, score, fields], rank) => {
    const button = made("button", { type: "button", title: "why was it found?" },
      made("span", { className: "rank" }, `${rank + 1}`),
      made("span", {}, title ? `${item}  ${title}` : `${item}`), made("span", { className: "score" }, score.toFixed(4)));
    if (fields) button.append(made("span", { className: "fields" }, fields));
    button.addEventListener("click", () => explain(query, item, title));
    list.append(made("li", { className: kept.has(String(item)) ? "" : "cut" }, button));
  });
  return list;
}

// The attributes of an item that have a value, in a line.
function fieldsOf(fields) {
  const there = Object.entries(fields ?? {}).filter(([, value]) => value !== null);
  return there.map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(", ") : value}`).join(" · ");
}

async function explain(query, item, title) {
  try {
    const { answer } = await ask("v1/explain", { query, items: [item], ids: "string" });
    const [own] = answer.items;
    byId("why-title").textContent = `${title ? `${item} ${title}` : item}: score ${own.score.toFixed(4)}`;
    byId("why-body").replaceChildren(
      made("p", {}, "The score is the sum of gate × cosine over all pairs of a query's and an item's component."),
      matrix("Gates: how much each pair counts", own.gates, 0, 1), matrix("Cosines of the pairs", own.cosines, -1, 1));
    byId("why").showModal();
  } catch (error) {
    tell(error);
  }
}

function matrix(caption, rows, low, high) {
  const table = made("table");
  table.createCaption().textContent = caption;
  table.append(made("tr", {}, made("th", {}, "query \\ item"), ...rows[0].map((_, column) => made("th", {}, `${column + 1}`))));
  rows.forEach((row, number) => {
    const line = made("tr", {}, made("th", {}, `${number + 1}`));
    for (const value of row) {
      const cell = made("td", {}, value.toFixed(3));
      const share = Math.round((100 * (value - low)) / (high - low));
      cell.style.background = `color-mix(in srgb, var(--mark) ${Math.round(share * 0.6)}%, transparent)`;
      line.append(cell);
    }
    table.append(line);
  });
  return made("div", { className: "scroll" }, table);
}

function fill(select, names) {
  select.replaceChildren(...names.map((name) => made("option", { value: name }, name)));
}

async function start() {
  try {
    ({ answer: index } = await ask("v1/index"));
  } catch (error) {
    byId("index").textContent = error.message;
    byId("key-field").open = true;
    return;
  }
  tell(null);
  byId("index").textContent = `version ${index.version}: ${index.num_items} items in ${index.num_shards} shards`;
  const fields = Object.keys(index.query);
  fill(byId("field"), fields);
  byId("field-label").hidden = fields.length < 2;
  byId("query").placeholder = EXAMPLES[fields[0]] ?? "";
  const attributes = Object.entries(index.attributes).map(([name, kind]) => `${name} (${kind})`);
  byId("filter-label").hidden = attributes.length === 0;
  byId("filter").placeholder = `in JSON, by ${attributes.join(", ")}`;
}

for (const fieldset of document.querySelectorAll("fieldset.how")) {
  const [cutoff, value] = ["cutoff", "value"].map((name) => fieldset.querySelector(`[name="${name}"]`));
  fill(fieldset.querySelector('[name="method"]'), METHODS);
  fill(cutoff, Object.keys(CUTOFFS));
  const follow = () => {
    value.value = CUTOFFS[cutoff.value] ?? "";
    value.disabled = CUTOFFS[cutoff.value] === null;
  };
  cutoff.addEventListener("change", follow);
  follow();
}
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
byId("beside").addEventListener("change", ({ target }) => {
  document.querySelector('fieldset[data-side="b"]').hidden = !target.checked;
});
byId("field").addEventListener("change", ({ target }) => {
  byId("query").placeholder = EXAMPLES[target.value] ?? "";
});
byId("key").addEventListener("change", start);
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
start();
