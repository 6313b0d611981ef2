// One failure of one verify step: trees, keys, errors, reads, slots, and the row tracer.
const WORDS = {"+": "reads but must not", "-": "must read but does not", "2": "reads twice", "~": "heads disagree"};
const NAMES = {kv: "KV"};
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
  }
  get request() { return this.data.requests[this.index]; }

  // Rows of the path from the root to a row, both included.
  path(row) {
    const {parents} = this.request, found = [row];
    while (parents[found[0]] >= 0) found.unshift(parents[found[0]]);
    return found;
  }

  // What stands for `as it must be` in the island, worked out.
  due(row) { return this.request.reads[row] || this.path(row); }
  readOf(row, read) { return read || [this.request.prefix - this.request.first[row], this.due(row).map(i => [this.request.slots[i], 1])]; }
  valuesOf(found) { return found.values[this.index] === 0 ? this.wanted(found.what) : found.values[this.index] || []; }

  draw() {
    this.pickers = [];
    this.panel = el("section", {className: "tracer", ariaLabel: `Row tracer, ${this.name}`});
    this.canvas.replaceChildren(...[this.trees(), this.keys(), this.heat(), this.reads(), this.slots(), this.tables(), this.panel].filter(Boolean));
    this.pick(this.row, false);
  }

  pick(row, move = true) {
    this.row = Math.max(0, Math.min(row, this.request.parents.length - 1));
    for (const mark of this.pickers) mark.node.classList.toggle("picked", mark.row === this.row);
    this.trace();
    if (move) history.replaceState(null, "", `#${this.article.id}/${this.request.b}/${this.row}`);
  }

  picker(node, row) {
    this.pickers.push({node, row});
    node.addEventListener("click", () => this.pick(row));
    return node;
  }

  // The drawn tree and, beside it, what each identity's evidence determined.
  trees() {
    const {parents} = this.request;
    const due = i => String(i);
    const drawn = el("figure", {}, el("figcaption", {textContent: "drawn tree (row numbers)"}),
      this.tree(parents, due, () => "", "the drawn tree"));
    const row = el("div", {className: "row"}, drawn);
    for (const found of this.data.recovered) {
      const values = this.valuesOf(found);
      const want = this.wanted(found.what);
      const value = i => values[i] === undefined ? null : values[i];
      const state = i => value(i) === null ? "unknown" : value(i) !== want[i] ? "bad" : "";
      const wrong = parents.some((_, i) => state(i) === "bad");
      const all = parents.every((_, i) => value(i) === null);
      const name = `${identityName(found.identity)} (${found.evidence}): ${{parents: "parents", depths: "depth", tokens: "token", rows: "row held by its slot"}[found.what]}`;
      const caption = el("figcaption", {textContent: all ? `${name}: not determined` : wrong ? `${name}: differs` : name});
      const figure = el("figure", {className: wrong ? "wrong" : ""}, caption);
      if (!all) figure.append(found.what === "parents"
        ? this.tree(parents.map((_, i) => value(i)), due, state, name, parents)
        : this.tree(parents, i => value(i) === null ? "?" : String(value(i)), state, name));
      row.append(figure);
    }
    return el("section", {}, el("h4", {textContent: "Recovered trees"}), row);
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
        textContent: this.prefixDue(i) + inPrefix.slice(0, 4).map(m => ` ${m[3]}${m[2]}`).join("") + (inPrefix.length > 4 ? " …" : "")});
      const cells = r.parents.map((_, c) => {
        const mark = marks.find(m => m[2] === r.prefix + c);
        const kind = mark ? (mark[3] === "+" ? "over" : "miss") : reads.has(c) ? "due" : "";
        const said = mark ? `row ${i} ${WORDS[mark[3]]} row ${c}` : "";
        return el("td", {className: kind, title: said, textContent: mark ? mark[3] : reads.has(c) ? "•" : ""});
      });
      const button = el("button", {type: "button", textContent: i, ariaLabel: `trace row ${i}`});
      button.addEventListener("click", () => this.pick(i));
      const line = el("tr", {}, el("th", {scope: "row"}, button), prefix, ...cells);
      this.pickers.push({node: line, row: i});
      return line;
    });
    const legend = ["• must read", ...used.map(s => `${s} ${WORDS[s]}`)].join(" · ");
    const left = count > 24 && rows.length < count ? ` Of ${count} rows, ${rows.length} that differ.` : "";
    return el("section", {}, el("h4", {textContent: "Which keys a row reads"}), el("p", {className: "dim", textContent: legend + left}),
      el("div", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Keys read by each row, ${this.name}`},
        el("table", {className: "keys"}, el("thead", {}, head), el("tbody", {}, ...body))));
  }

  seen(field) {
    const values = this.data.seen && this.data.seen[field][this.index];
    return values && values.length ? values : null;
  }

  rowButton(i) {
    const button = el("button", {type: "button", textContent: i, ariaLabel: `trace row ${i}`});
    button.addEventListener("click", () => this.pick(i));
    return el("th", {scope: "row"}, button);
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
    const lines = errors.map((heads, i) => {
      const line = el("tr", {}, this.rowButton(i), ...heads.map((x, h) => el("td", {className: shade(x), textContent: say(x), title: `row ${i}, head ${h}: ${say(x)} times the bound`})));
      this.pickers.push({node: line, row: i});
      return line;
    });
    return el("section", {}, el("h4", {textContent: `Error over its bound: ${say(worst)} at most, above 1 is wrong`}),
      el("p", {className: "dim", textContent: "Here and below attention was given what a right build makes, so that it is shown by itself."}),
      this.table("Errors", ["row", ...errors[0].map((_, h) => `head ${h}`)], lines));
  }

  // Who lives in a slot, in words.
  tenant(slot) {
    const name = (b, what) => b === this.request.b ? what : `request ${b} ${what}`;
    for (const r of this.data.requests) if (r.slots.includes(slot)) return name(r.b, `row ${r.slots.indexOf(slot)}`);
    const owner = this.data.seen.owners[slot];
    return owner ? name(owner[0], `column ${owner[1]}`) : `slot ${slot}, nobody's`;
  }

  // Rows of all drawn requests that were seen to read a slot, and whether they must.
  readers(slot) {
    const seen = this.data.seen, here = this.index, found = [];
    if (!seen) return found;
    this.data.requests.forEach((r, index) => {
      this.index = index; // what is due is asked of that request
      (seen.reads[index] || []).forEach((read, i) => {
        if (this.readOf(i, read)[1].some(([other, n]) => other === slot && n > 0))
          found.push({b: r.b, row: i, right: this.due(i).some(row => r.slots[row] === slot)});
      });
    });
    this.index = here;
    return found;
  }

  readerWords(slot) {
    const found = this.readers(slot), name = f => f.b === this.request.b ? `${f.row}` : `${f.row} of request ${f.b}`;
    const wrong = found.filter(f => !f.right);
    return {words: found.length ? `read by row${found.length > 1 ? "s" : ""} ${found.map(name).join(", ")}` : "", wrong: wrong.length ? `must not be read by ${wrong.map(name).join(", ")}` : ""};
  }

  readLine(i, read) {
    const [prefix, slots] = this.readOf(i, read), r = this.request, due = r.prefix - r.first[i], others = slots.reduce((sum, [, n]) => sum + n, 0);
    const own = new Map(r.slots.map((slot, row) => [slot, row])), want = new Set(this.due(i));
    const parts = slots.map(([slot, n]) => {
      const row = own.get(slot), right = row !== undefined && want.has(row) && n === 1;
      return el("span", {className: right ? "due" : "over", textContent: `${this.tenant(slot)}${n === 1 ? "" : ` ×${n}`} `});
    });
    const missing = [...want].filter(row => !slots.some(([slot]) => own.get(slot) === row)).map(row => el("span", {className: "miss", textContent: `not row ${row} `}));
    const share = (a, b) => a + b === 0 ? "–" : `${(100 * a / (a + b)).toFixed(0)} %`;
    const line = el("tr", {}, this.rowButton(i),
      el("td", {className: prefix === due ? "due" : "over", textContent: prefix === due ? `${due}` : `${prefix}, not ${due}`}),
      el("td", {className: "left"}, ...parts, ...missing),
      el("td", {className: share(prefix, others) === share(due, want.size) ? "" : "over", textContent: `${share(prefix, others)} / ${share(due, want.size)}`}));
    this.pickers.push({node: line, row: i});
    return line;
  }

  readTable(name, reads) {
    return this.table(name, ["row", "prefix keys", "other keys", "prefix's share: seen / due"], reads.map((read, i) => this.readLine(i, read)), "keys wide");
  }

  // What every row was seen to read; a cascade's prefix and suffix weigh as their keys do.
  reads() {
    const reads = this.seen("reads");
    if (!reads) return null;
    return el("section", {}, el("h4", {textContent: "What rows were seen to read, with equal weights"}), this.readTable("Keys seen to be read", reads));
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
      const lines = this.request.parents.map((_, i) => el("tr", {}, this.rowButton(i), ...Object.values(fields).map(values => el("td", {textContent: values[i] === undefined ? "" : values[i]}))));
      parts.push(el("details", {}, el("summary", {textContent: "Declared: fields of the build"}), this.table("Fields of the build", ["row", ...Object.keys(fields)], lines)));
    }
    return parts.length ? el("section", {}, el("h4", {textContent: "What the backend laid out"}), ...parts) : null;
  }

  // Pages that hold verify rows of this request, and the prefix columns beside them.
  slots() {
    const r = this.request, size = this.data.page, pages = new Map(), first = r.prefix - r.prefix_slots.length;
    const put = (slot, what) => {
      if (slot < 0) return;
      const page = Math.floor(slot / size);
      if (!pages.has(page)) pages.set(page, new Map());
      pages.get(page).set(slot, what);
    };
    r.prefix_slots.forEach((slot, i) => put(slot, {column: first + i}));
    r.slots.forEach((slot, row) => put(slot, {row}));
    const held = this.data.recovered.find(f => f.what === "rows");
    const values = held ? this.valuesOf(held) : [];
    const leaves = [...pages].filter(([, slots]) => [...slots.values()].some(w => w.row !== undefined)).map(([page, slots]) => {
      const cells = [...Array(Math.min(size, 64)).keys()].map(i => {
        const slot = page * size + i, what = slots.get(slot);
        if (!what) return size === 1 ? null : el("li", {}, el("span", {className: "free", textContent: "·", title: `slot ${slot}: none of this request`}));
        if (what.row === undefined) return el("li", {}, el("span", {className: "free", textContent: `P${what.column}`, title: `slot ${slot}: prefix column ${what.column}`}));
        const value = values[what.row], wrong = value !== undefined && value !== null && value !== what.row;
        const readers = this.readerWords(slot), told = [readers.words, readers.wrong].filter(Boolean).map(words => `; ${words}`).join("");
        const button = el("button", {type: "button", className: wrong || readers.wrong ? "bad" : "", textContent: wrong ? `r${what.row}≠${value}` : `r${what.row}`,
          title: `slot ${slot}: column ${r.prefix + what.row}, row ${what.row}${wrong ? `; holds ${value < 0 ? "no row" : `row ${value}`}` : ""}${told}`});
        return el("li", {}, this.picker(button, what.row));
      });
      return el("div", {className: "leaf"}, size === 1 ? `slot ${page}` : `page ${page}`, el("ol", {}, ...cells.filter(Boolean)));
    });
    return el("section", {}, el("h4", {textContent: "Where the rows live in the KV pool"}), el("div", {className: "slots"}, ...leaves), this.writes());
  }

  // Writes that no row of this request owed, and rows that were not written.
  writes() {
    if (!this.data.seen) return null;
    const first = this.data.seen.first[this.index], {wrong, missing} = this.data.seen.writes[this.index], {slots} = this.request;
    const name = n => n === -1 ? "as before" : n === -2 ? "what no row brought" : n === -3 ? "a padded row" : n < -3 ? "a row in part" : `row ${n - first}`;
    const whose = slot => this.tenant(slot).startsWith("slot ") ? ", nobody's," : ` (${this.tenant(slot)})`;
    const lines = [...wrong.map(([slot, k, v]) => `slot ${slot}${whose(slot)} now holds K of ${name(k)} and V of ${name(v)}`),
      ...missing.map(row => `slot ${slots[row]} was not written: K and V of row ${row} are missing`)];
    return lines.length ? el("ul", {className: "wrong"}, ...lines.slice(0, 40).map(line => el("li", {textContent: line}))) : null;
  }

  // One row: token, position, keys, links, slot; expected beside actual.
  trace() {
    const r = this.request, i = this.row, d = this.data;
    const asked = el("div", {className: "ask"});
    const choose = (name, options, value, then) => {
      const select = el("select", {}, ...options.map(o => el("option", {value: o, textContent: o, selected: o === value})));
      select.addEventListener("change", () => then(Number(select.value)));
      asked.append(el("label", {className: "dim"}, `${name} `, select));
    };
    choose("request", d.requests.map(q => q.b), r.b, b => { this.index = d.requests.findIndex(q => q.b === b); this.row = 0; this.draw(); });
    choose("row", r.parents.map((_, n) => n), i, n => this.pick(n));
    const kids = r.parents.flatMap((p, n) => p === i ? [n] : []);
    const up = r.parents[i] < 0 ? "no parent" : `parent row ${r.parents[i]}`;
    const keys = `prefix ${this.prefixDue(i)}, rows ${this.due(i).join(" ")}`;
    const expected = {
      candidate: ["token", String(r.tokens[i])],
      position: ["position", `${r.prefix + r.depths[i]} = prefix ${r.prefix} + depth ${r.depths[i]}`],
      visibility: ["keys", keys],
      traversal: ["links", `${up}, children ${kids.join(" ") || "none"}`],
      kv: ["slot", `${r.slots[i]} = page ${Math.floor(r.slots[i] / d.page)}, offset ${r.slots[i] % d.page}; column ${r.prefix + i}`],
    };
    const unit = {parents: "parent row", depths: "depth", tokens: "token", rows: "row in this slot"};
    const lines = Object.entries(expected).map(([identity, [name, text]]) => {
      const said = el("td", {});
      for (const found of d.recovered.filter(f => f.identity === identity)) {
        const value = this.valuesOf(found)[i];
        const known = value !== undefined && value !== null;
        const wrong = known && value !== this.wanted(found.what)[i];
        said.append(el("div", {className: wrong ? "wrong" : "", textContent: `${found.evidence}: ${unit[found.what]} ${known ? (value < 0 ? "none" : value) : "not determined"}`}));
      }
      for (const mark of identity === "visibility" ? this.marks(i) : []) {
        const column = mark[2] < r.prefix ? `prefix key ${mark[2]}` : `row ${mark[2] - r.prefix}`;
        said.append(el("div", {className: "wrong", textContent: `${mark[4]}: ${WORDS[mark[3]]}: ${column}`}));
      }
      for (const f of d.others.filter(f => f[3] === identity && f[0] === r.b && f[1] === i && (identity !== "visibility" || f[2] === null)))
        said.append(el("div", {className: "wrong", textContent: `✗ ${f[5]}: ${f[6]}`}));
      if (identity === "kv" && d.seen) {
        const readers = this.readerWords(r.slots[i]);
        if (readers.words) said.append(el("div", {textContent: `measured: ${readers.words}`}));
        if (readers.wrong) said.append(el("div", {className: "wrong", textContent: `measured: ${readers.wrong}`}));
      }
      return el("tr", {}, el("th", {scope: "row", textContent: name}), el("td", {textContent: text}), said);
    });
    const beside = d.others.filter(f => ["output", "contract"].includes(f[3]) && (f[1] === null || (f[0] === r.b && f[1] === i)));
    for (const f of beside) lines.push(el("tr", {}, el("th", {scope: "row", textContent: f[3]}), el("td", {}), el("td", {className: "wrong", textContent: `✗ ${f[5]}: ${f[6]}`})));
    this.panel.replaceChildren(el("h4", {textContent: `Row ${i} of request ${r.b}${r.nodes[i] === i ? "" : ` (node ${r.nodes[i]})`}`}), asked,
      el("table", {}, el("thead", {}, el("tr", {}, el("th", {scope: "col", textContent: "what"}), el("th", {scope: "col", textContent: "expected"}), el("th", {scope: "col", textContent: "what was seen"}))), el("tbody", {}, ...lines)));
  }
}
