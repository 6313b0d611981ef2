// One failure of one verify step: trees, keys, errors, reads, slots, and the row tracer.
const WORDS = {"+": "reads but must not", "-": "must read but does not", "2": "reads twice", "~": "heads disagree"};
const NAMES = {kv: "KV"};
const SMALL = 16; // rows up to which trees that do not differ are shown unfolded
const cut = text => text.length > 40 ? `${text.slice(0, 39)}…` : text;
const PREFIX_WORDS = [["+", keys => keys && `and ${cut(keys)}`], ["-", keys => keys && `without ${cut(keys)}`], ["2", keys => keys && `twice ${cut(keys)}`], ["~", keys => keys && `in some heads ${cut(keys)}`]];
const identityName = name => NAMES[name] || name;

class Drawing {
  constructor(article, canvas, data) {
    this.article = article;
    this.canvas = canvas;
    this.data = data;
    this.name = article.id.replace("-", " ");
    this.pickers = [];
    this.index = Math.max(0, data.requests.findIndex(r => r.b === data.at[0]));
    this.row = Math.min(data.at[1] ?? 0, this.request.parents.length - 1);
    this.pool = new Pool(this);
    this.tracer = new Tracer(this);
  }
  get request() { return this.data.requests[this.index]; }

  // Rows of the path from the root to a row, both included.
  path(row, {parents}) {
    const found = [row];
    while (parents[found[0]] >= 0) found.unshift(parents[found[0]]);
    return found;
  }

  // What stands for `as it must be` in the island, worked out.
  due(row, r = this.request) { return r.reads[row] || this.path(row, r); }
  readOf(row, read, r = this.request) { return read || [r.prefix - r.first[row], this.due(row, r).map(i => [r.slots[i], 1])]; }
  valuesOf(found) { return found.values[this.index] === 0 ? this.wanted(found.what) : found.values[this.index] || []; }

  draw() {
    this.pickers = [];
    const parts = [this.trees(), this.keys(), this.heat(), this.reads(), this.pool.draw(), this.tables(), originalCase(this.data.original), this.tracer.panel];
    this.canvas.replaceChildren(...parts.filter(Boolean));
    this.pick(this.row, false);
  }

  show(index, row) {
    this.index = index;
    this.row = row;
    this.draw();
  }

  pick(row, move = true) {
    this.row = Math.max(0, Math.min(row, this.request.parents.length - 1));
    for (const mark of this.pickers) mark.node.classList.toggle("picked", mark.row === this.row);
    this.tracer.draw();
    if (!move) return;
    this.tracer.panel.classList.add("follows");
    history.replaceState(null, "", `#${this.article.id}/${this.request.b}/${this.row}`);
  }

  picker(node, row) {
    this.pickers.push({node, row});
    node.addEventListener("click", () => this.pick(row));
    return node;
  }

  // The drawn tree and, beside it, what each identity's evidence determined, what differs first.
  trees() {
    const {parents} = this.request;
    const drawn = el("figure", {}, el("figcaption", {textContent: "drawn tree (row numbers)"}), this.tree(parents, String, () => "", "the drawn tree"));
    const found = this.data.recovered.map(one => this.recovered(one)).sort((a, b) => b.wrong - a.wrong);
    const silent = Object.entries(this.data.verdicts).map(([identity, words]) =>
      el("figure", {}, el("figcaption", {}, el("span", {textContent: `${identityName(identity)}: not determined`}), ...words.map(textContent => el("div", {textContent})))));
    const wrong = found.filter(one => one.wrong).map(one => one.figure), right = [...found.filter(one => !one.wrong).map(one => one.figure), ...silent];
    const folded = parents.length > SMALL && wrong.length && right.length;
    const rest = folded ? el("details", {}, el("summary", {textContent: `${right.length} more, which do not differ`}), el("div", {className: "row"}, ...right)) : null;
    const {left_out: left} = this.data, others = left ? el("p", {className: "dim", textContent: `${left} more request${left === 1 ? "" : "s"} of the case ${left === 1 ? "is" : "are"} not drawn.`}) : null;
    return el("section", {}, el("h4", {textContent: "Recovered trees"}), others, el("div", {className: "row"}, drawn, ...wrong, ...(folded ? [] : right)), rest);
  }

  recovered(found) {
    const {parents} = this.request, values = this.valuesOf(found), want = this.wanted(found.what);
    const value = i => values[i] === undefined ? null : values[i];
    const state = i => value(i) === null ? "unknown" : value(i) !== want[i] ? "bad" : "";
    const odd = parents.flatMap((_, i) => state(i) === "bad" ? [i] : []), all = parents.every((_, i) => value(i) === null);
    const name = `${identityName(found.identity)} (${found.witness}): ${{parents: "parents", depths: "depth", tokens: "token", rows: "row held by its slot"}[found.what]}`;
    const differs = odd.length ? `, differs in row${odd.length > 1 ? "s" : ""} ${ranges(odd)}` : "";
    const figure = el("figure", {className: odd.length ? "wrong" : ""}, el("figcaption", {textContent: all ? `${name}: not determined` : `${name}${differs}`}));
    if (!all) figure.append(found.what === "parents"
      ? this.tree(parents.map((_, i) => value(i)), String, state, name, parents)
      : this.tree(parents, i => value(i) === null ? "?" : String(value(i)), state, name));
    return {figure, wrong: odd.length > 0};
  }

  wanted(what) {
    const r = this.request;
    return {parents: r.parents, depths: r.depths, tokens: r.tokens, rows: r.parents.map((_, i) => i)}[what];
  }

  tree(parents, label, state, title, due) {
    return treePicture({parents, label, state, title, due, pick: row => this.pick(row), note: (node, row) => this.picker(node, row)});
  }

  // Prefix keys that a row must read, in words.
  prefixDue(row) {
    const {prefix, first} = this.request;
    if (prefix === 0) return "empty";
    return first[row] === 0 ? "all" : first[row] === prefix ? "none" : `${first[row]}–${prefix - 1}`;
  }

  marks(row) {
    return this.data.marks.filter(m => m[0] === this.request.b && m[1] === row);
  }

  // Expected against actual visibility: the prefix folded, a column a row.
  keys() {
    const r = this.request, count = r.parents.length;
    const all = this.data.marks.filter(m => m[0] === r.b);
    if (!all.length) return null;
    const used = [...new Set(all.map(m => m[3]))];
    const wrongRows = new Set(all.map(m => m[1]));
    const rows = count <= 24 ? [...r.parents.keys()] : [...r.parents.keys()].filter(i => wrongRows.has(i)).slice(0, 24);
    const head = el("tr", {}, el("th", {scope: "col", textContent: "row"}), el("th", {scope: "col", textContent: "prefix"}),
      ...r.parents.map((_, c) => el("th", {scope: "col", textContent: c})));
    const body = rows.map(i => {
      const marks = this.marks(i), reads = new Set(this.due(i));
      const inPrefix = marks.filter(m => m[2] < r.prefix);
      const prefix = el("td", {className: inPrefix.length ? (inPrefix.some(m => m[3] === "+") ? "over" : "miss") : "",
        textContent: [this.prefixDue(i), ...PREFIX_WORDS.map(([sign, words]) => words(ranges(inPrefix.filter(m => m[3] === sign).map(m => m[2]))))].filter(Boolean).join(", ")});
      const cells = r.parents.map((_, c) => {
        const mark = marks.find(m => m[2] === r.prefix + c);
        const kind = mark ? (mark[3] === "+" ? "over" : "miss") : reads.has(c) ? "due" : "";
        const said = mark ? `row ${i} ${WORDS[mark[3]]} row ${c}` : "";
        return el("td", {className: kind, title: said, textContent: mark ? mark[3] : reads.has(c) ? "•" : ""});
      });
      return this.line(i, prefix, ...cells);
    });
    const legend = ["• must read", ...used.map(s => `${s} ${WORDS[s]}`)].join(" · ");
    const left = count > 24 && rows.length < count ? `. Of ${count} rows, ${rows.length} that differ.` : "";
    return el("section", {}, el("h4", {textContent: "Which keys a row reads"}), el("p", {className: "dim", textContent: legend + left}),
      el("div", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Keys read by each row, ${this.name}`},
        el("table", {className: "keys"}, el("thead", {}, head), el("tbody", {}, ...body))));
  }

  seen(field) {
    const values = this.data.seen && this.data.seen[field][this.index];
    return values && values.length ? values : null;
  }

  // A line of a table about one row: a click anywhere in it, or its button, picks the row.
  line(i, ...cells) {
    const button = el("button", {type: "button", textContent: i, ariaLabel: `trace row ${i}`});
    return this.picker(el("tr", {}, el("th", {scope: "row"}, button), ...cells), i);
  }

  table(name, heads, lines, className = "keys") {
    return el("div", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: `${name}, ${this.name}`},
      el("table", {className}, el("thead", {}, el("tr", {}, ...heads.map(h => el("th", {scope: "col", textContent: h})))), el("tbody", {}, ...lines)));
  }

  // Error over bound, a row and query head.
  heat() {
    const errors = this.seen("errors");
    if (!errors) return null;
    const worst = Math.max(...errors.flat());
    const say = x => x >= 1e9 ? "∞" : x >= 1000 ? x.toExponential(0) : x >= 10 ? x.toFixed(0) : x.toFixed(2);
    const shade = x => x > 1 ? (x > 10 ? "hot" : "warm") : x > 0.5 ? "near" : "";
    const lines = errors.map((heads, i) => this.line(i, ...heads.map((x, h) =>
      el("td", {className: shade(x), textContent: say(x), title: `row ${i}, head ${h}: ${say(x)} times the bound`}))));
    return el("section", {}, el("h4", {textContent: `Error over its bound: ${say(worst)} at most, above 1 is wrong`}),
      el("p", {className: "dim", textContent: "Here and below attention was given what a right build makes, so that it is shown by itself."}),
      this.table("Errors", ["row", ...errors[0].map((_, h) => `head ${h}`)], lines));
  }

  readLine(i, read, weighed) {
    const [prefix, slots] = this.readOf(i, read), r = this.request, due = r.prefix - r.first[i], others = slots.reduce((sum, [, n]) => sum + n, 0);
    const own = new Map(r.slots.map((slot, row) => [slot, row])), want = new Set(this.due(i));
    const right = ([slot, n]) => n === 1 && want.has(own.get(slot)), rows = slots.filter(right).map(([slot]) => own.get(slot));
    const parts = rows.length ? [el("span", {className: "due", textContent: `row${rows.length > 1 ? "s" : ""} ${ranges(rows)} `})] : [];
    parts.push(...slots.filter(pair => !right(pair)).map(([slot, n]) =>
      el("span", {className: "over", textContent: `${this.pool.tenant(slot) || `slot ${slot}, nobody's`}${n === 1 ? "" : ` ×${n}`} `})));
    const missing = [...want].filter(row => !slots.some(([slot]) => own.get(slot) === row)).map(row => el("span", {className: "miss", textContent: `not row ${row} `}));
    const share = (a, b) => a + b === 0 ? "–" : `${(100 * a / (a + b)).toFixed(0)} %`;
    return this.line(i,
      el("td", {className: prefix === due ? "due" : "over", textContent: prefix === due ? `${due}` : `${prefix}, not ${due}`}),
      el("td", {className: "left"}, ...parts, ...missing),
      el("td", {className: share(prefix, others) === share(due, want.size) ? "" : "over", textContent: `${share(prefix, others)} / ${share(due, want.size)}`}),
      weighed ? el("td", {className: Math.abs(weighed[0] - weighed[1]) > 10 ? "over" : "", textContent: weighed.map(x => `${(x / 10).toFixed(1)} %`).join(" / ")}) : null);
  }

  readTable(name, reads, shares) {
    const heads = ["row", "prefix keys", "other keys", "prefix's share: seen / due", ...(shares ? ["with the case's own data"] : [])];
    return this.table(name, heads, reads.map((read, i) => this.readLine(i, read, shares && shares[i])), "keys wide");
  }

  // What every row was seen to read; a cascade's prefix and suffix weigh as their keys do.
  reads() {
    const reads = this.seen("reads");
    if (!reads) return null;
    return el("section", {}, el("h4", {textContent: "What rows were seen to read, with equal weights"}), this.readTable("Keys seen to be read", reads, this.seen("shares")));
  }

  // Masks, lists, links and positions as the backend laid them out.
  tables() {
    const seen = this.data.seen;
    if (!seen) return null;
    const parts = Object.entries(seen.declared).filter(([, reads]) => (reads[this.index] || []).length)
      .map(([form, reads]) => el("details", {}, el("summary", {textContent: `Declared: ${form}`}), this.readTable(form, reads[this.index])));
    const fields = {};
    const {prefix, depths} = this.request, positions = seen.positions[this.index], slots = seen.slots[this.index];
    if (positions === 0 || positions.length) fields.positions = positions || depths.map(depth => prefix + depth);
    if (slots === 0 || slots.length) fields.out_cache_loc = slots || this.request.slots;
    for (const [name, tables] of Object.entries(seen.links)) if ((tables[this.index] || []).length) fields[name] = tables[this.index];
    if (Object.keys(fields).length) {
      const lines = this.request.parents.map((_, i) => this.line(i, ...Object.values(fields).map(values => el("td", {textContent: values[i] === undefined ? "" : values[i]}))));
      parts.push(el("details", {}, el("summary", {textContent: "Declared: fields of the build"}), this.table("Fields of the build", ["row", ...Object.keys(fields)], lines)));
    }
    return parts.length ? el("section", {}, el("h4", {textContent: "What the backend laid out"}), ...parts) : null;
  }
}
