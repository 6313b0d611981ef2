"use strict";
// Every string is put in as text, never as markup.
const el = (name, props, ...kids) => {
  const node = Object.assign(document.createElement(name), props || {});
  node.append(...kids.filter(k => k !== null && k !== undefined));
  return node;
};
const svg = (name, attributes, ...kids) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...kids);
  return node;
};

const differs = state => row => `row ${row}${state(row) === "bad" ? ", differs" : state(row) === "unknown" ? ", not determined" : ""}`;
// A tree by parent rows, which may be null (not determined), out of range or on a cycle: such rows stand as
// further roots. `due`: the right parents, drawn dashed where they differ. `state(row)` is a class; `note` is
// handed each node and its row, `pick` the row that was chosen; without them nothing can be chosen. `edgeState(row)`: of the edge above it.
function treePicture({parents, label, state, title, due, pick, note, say = differs(state), edgeState = () => ""}) {
  const count = parents.length, kids = parents.map(() => []), roots = [];
  parents.forEach((p, i) => (p !== null && p >= 0 && p < count && p !== i ? kids[p] : roots).push(i));
  const x = [], y = [], seen = new Set();
  let next = 0;
  const place = (i, depth) => {
    if (seen.has(i)) return;
    seen.add(i);
    y[i] = depth;
    const first = next;
    for (const kid of kids[i]) place(kid, depth + 1);
    x[i] = next === first ? next++ : (first + next - 1) / 2;
  };
  roots.forEach(i => place(i, 0));
  parents.forEach((_, i) => place(i, 0));
  const wide = Math.max(28, ...parents.map((_, i) => label(i).length * 7 + 12));
  const at = i => [x[i] * wide + wide / 2, y[i] * 40 + 16];
  const odd = i => due && parents[i] !== null && parents[i] !== due[i];
  const swing = parents.some((_, i) => odd(i) && due[i] >= 0) ? 24 : 0;
  const width = next * wide + swing, height = Math.max(...y) * 40 + 32;
  const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: pick ? "group" : "img", "aria-label": title});
  const edge = (from, to, kind) => {
    const [a, b] = at(from), [c, d] = at(to);
    // The one that is missing swings out, so that it shows beside those that are there.
    const way = kind === "due" && odd(to) ? `Q${(a + c) / 2 + 44} ${(b + d) / 2} ${c} ${d}` : `L${c} ${d}`;
    picture.append(svg("path", {d: `M${a} ${b}${way}`, class: `edge ${kind}`}));
  };

  parents.forEach((p, i) => {
    if (odd(i) && due[i] >= 0) edge(due[i], i, "due");
    if (p !== null && p >= 0 && p < count && p !== i) edge(p, i, odd(i) ? "bad" : edgeState(i));
  });
  parents.forEach((_, i) => {
    const [a, b] = at(i), kind = state(i);
    const node = svg("g", {class: `node ${kind}`, ...(pick ? {tabindex: 0, role: "button", "aria-label": say(i)} : {})},
      svg("circle", {cx: a, cy: b, r: 11}), svg("text", {x: a, y: b + 4, "text-anchor": "middle"}, label(i)));
    if (pick) node.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(i); } });
    picture.append(pick ? note(node, i) : node);
  });
  return el("div", {className: "scroll"}, picture);
}

// The case that was drawn, before it was made smaller; drawn once it is opened.
function originalCase(original) {
  if (!original) return null;
  const inside = el("div", {className: "row"}), summary = el("summary", {textContent: original.size});
  const details = el("details", {}, summary, original.steps.length ? el("pre", {className: "figures", textContent: original.steps.join("\n")}) : null, inside);
  details.addEventListener("toggle", () => {
    if (!details.open || inside.childElementCount) return;
    inside.append(...original.requests.map((r, b) => el("figure", {}, el("figcaption", {textContent: `request ${b}: prefix ${r.prefix}, ${r.parents.length} row${r.parents.length === 1 ? "" : "s"}`}), treePicture({parents: r.parents, label: String, state: () => "", title: `tree of request ${b} as it was drawn`}))));
    if (original.left_out) inside.append(el("p", {className: "dim", textContent: `${original.left_out} more request${original.left_out === 1 ? "" : "s"}`}));
  });
  return el("section", {}, el("h4", {textContent: "Before it was made smaller"}), details);
}
