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
// handed each node and its row, `pick` the row that was chosen. `edgeState(row)`: of the edge above it.
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
  const wide = Math.max(24, ...parents.map((_, i) => label(i).length * 7 + 12));
  const at = i => [x[i] * wide + wide / 2, y[i] * 40 + 16];
  const width = next * wide, height = Math.max(...y) * 40 + 32;
  const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": title});
  const edge = (from, to, kind) => {
    const [a, b] = at(from), [c, d] = at(to);
    picture.append(svg("path", {d: `M${a} ${b}L${c} ${d}`, class: `edge ${kind}`}));
  };
  parents.forEach((p, i) => {
    const odd = due && p !== null && p !== due[i];
    if (odd && due[i] >= 0) edge(due[i], i, "due");
    if (p !== null && p >= 0 && p < count && p !== i) edge(p, i, odd ? "bad" : edgeState(i));
  });
  parents.forEach((_, i) => {
    const [a, b] = at(i), kind = state(i);
    const node = svg("g", {class: `node ${kind}`, tabindex: 0, role: "button",
      "aria-label": say(i)},
      svg("circle", {cx: a, cy: b, r: 11}), svg("text", {x: a, y: b + 4, "text-anchor": "middle"}, label(i)));
    node.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(i); } });
    picture.append(note(node, i));
  });
  return el("div", {className: "scroll"}, picture);
}
