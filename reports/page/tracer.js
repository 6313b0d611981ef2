const UNIT = {parents: "parent row", depths: "depth", tokens: "token", rows: "row in this slot"};
const MOST_SAID = 12; // of one identity about one row

// Numbers ascending, runs of three and more folded: `0-6 9 12`.
function ranges(numbers) {
  const runs = [];
  for (const n of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && n === last[1] + 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => b - a > 1 ? `${a}-${b}` : a === b ? `${a}` : `${a} ${b}`).join(" ");
}

// One row through the stages, as `treeproof trace` tells it: token, position, keys, links, slot; expected
// beside what was seen. At first it stands below the pictures and covers none; it follows once a row is chosen.
class Tracer {
  constructor(drawing) {
    this.drawing = drawing;
    this.panel = el("section", {className: "tracer", ariaLabel: `Row tracer, ${drawing.name}`});
  }

  draw() {
    const {request: r, row: i, data: d} = this.drawing;
    const expected = {
      candidate: ["token", `${r.tokens[i]}${r.parents[i] < 0 ? " (last round’s bonus)" : ""}`],
      position: ["position", `${r.prefix + r.depths[i]} = prefix ${r.prefix} + depth ${r.depths[i]}`],
      visibility: ["keys", this.keys(r, i)],
      traversal: ["links", this.links(r, i)],
      kv: ["slot", `${r.slots[i]} = page ${Math.floor(r.slots[i] / d.page)}, offset ${r.slots[i] % d.page}; logical column ${r.prefix + i}`],
    };
    const line = (name, text, said) => el("tr", {}, el("th", {scope: "row", textContent: name}), el("td", {textContent: text}),
      el("td", {}, ...said.map(({text, wrong}) => el("div", {className: wrong ? "wrong" : "", textContent: text}))));
    const lines = Object.entries(expected).map(([identity, [name, text]]) => line(name, text, this.said(identity)));
    for (const f of d.others.filter(f => ["output", "contract"].includes(f[3]) && (f[1] === null || this.here(f))))
      lines.push(line(f[3], "", [this.failure(f)]));
    const heads = ["what", "expected", "what was seen"].map(textContent => el("th", {scope: "col", textContent}));
    this.panel.replaceChildren(
      el("h4", {textContent: `Row ${i} of request ${r.b}${r.nodes[i] === i ? "" : ` (node ${r.nodes[i]})`}`}), this.ask(),
      el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...lines)));
  }

  ask() {
    const {request: r, row, data: d} = this.drawing, asked = el("div", {className: "ask"});
    const choose = (name, options, value, then) => {
      const select = el("select", {}, ...options.map(o => el("option", {value: o, textContent: o, selected: o === value})));
      select.addEventListener("change", () => then(Number(select.value)));
      asked.append(el("label", {className: "dim"}, `${name} `, select));
    };
    choose("request", d.requests.map(q => q.b), r.b, b => this.drawing.show(d.requests.findIndex(q => q.b === b), 0));
    choose("row", r.parents.map((_, n) => n), row, n => this.drawing.pick(n));
    const release = el("button", {type: "button", className: "release", textContent: "let it go", title: "The panel follows the page since a row was chosen."});
    release.addEventListener("click", () => this.panel.classList.remove("follows"));
    asked.append(release);
    return asked;
  }

  keys(r, i) {
    const first = r.first[i], due = this.drawing.due(i), count = r.prefix - first + due.length;
    const prefix = first === r.prefix ? "" : `prefix ${first === r.prefix - 1 ? first : `${first}-${r.prefix - 1}`}, `;
    return `${prefix}rows ${ranges(due)} (${count} key${count === 1 ? "" : "s"})`;
  }

  links(r, i) {
    const kids = r.parents.flatMap((p, n) => p === i ? [n] : []), up = r.parents[i];
    const beside = up < 0 ? [] : r.parents.flatMap((p, n) => p === up && n !== i ? [n] : []);
    return `${up < 0 ? "no parent" : `parent row ${up}`}, children ${ranges(kids) || "none"}, siblings ${ranges(beside) || "none"}`;
  }

  here(f) { return f[0] === this.drawing.request.b && f[1] === this.drawing.row; }
  failure(f) { return {text: `✗ ${f[5]}: ${f[6]}`, wrong: true}; }

  // What was recovered of this row, which statements about it fail, and where nothing was recovered, why.
  said(identity) {
    const {request: r, row: i, data: d} = this.drawing, said = [];
    for (const found of d.recovered.filter(f => f.identity === identity)) {
      const value = this.drawing.valuesOf(found)[i], known = value !== undefined && value !== null;
      said.push({text: `${found.witness}: ${UNIT[found.what]} ${known ? (value < 0 ? "none" : value) : "not determined"}`,
        wrong: known && value !== this.drawing.wanted(found.what)[i]});
    }
    const failures = d.others.filter(f => f[3] === identity && this.here(f));
    said.push(...failures.slice(0, MOST_SAID).map(this.failure));
    if (failures.length > MOST_SAID) said.push({text: `… ${failures.length - MOST_SAID} more`, wrong: true});
    said.push(...(d.verdicts[identity] || []).map(text => ({text, wrong: false})));
    if (identity === "kv") said.push(...this.drawing.pool.story(r.slots[i], i).map(one => ({text: `${one.evidence}: ${one.text}`, wrong: one.wrong})));
    return said;
  }
}
