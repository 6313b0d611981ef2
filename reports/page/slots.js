// The KV pool as the request at hand sees it: who owns a slot, who read it, who wrote it.
class Pool {
  constructor(drawing) {
    this.drawing = drawing;
    this.data = drawing.data;
    this.seen = drawing.data.seen;
  }
  get request() { return this.drawing.request; }
  get index() { return this.drawing.index; }

  // Who lives in a slot, in words; null: nobody.
  tenant(slot) {
    const name = (b, what) => b === this.request.b ? what : `request ${b} ${what}`;
    for (const r of this.data.requests) if (r.slots.includes(slot)) return name(r.b, `row ${r.slots.indexOf(slot)}`);
    const owner = this.seen && this.seen.owners[slot];
    return owner ? name(owner[0], `column ${owner[1]}`) : null;
  }

  // Rows of the drawn requests, as they are called here.
  names(found) {
    const own = found.filter(({b}) => b === this.request.b).map(({row}) => row);
    const words = [...(own.length ? [ranges(own)] : []), ...found.filter(({b}) => b !== this.request.b).map(({b, row}) => `${row} of request ${b}`)];
    return `row${found.length > 1 ? "s" : ""} ${words.join(", ")}`;
  }

  // Rows that were seen to read a slot, and whether they must.
  readers(slot) {
    const found = [];
    this.data.requests.forEach((r, index) => (this.seen.reads[index] || []).forEach((read, row) => {
      if (this.drawing.readOf(row, read, r)[1].some(([other, n]) => other === slot && n > 0))
        found.push({b: r.b, row, right: this.drawing.due(row, r).some(other => r.slots[other] === slot)});
    }));
    return found;
  }

  // Rows that the build sends to a slot; null where it names none.
  sent(slot) {
    if (Array.isArray(this.seen.slots[this.index]) && !this.seen.slots[this.index].length) return null;
    return this.data.requests.flatMap((r, index) => (this.seen.slots[index] || r.slots).flatMap((at, row) => at === slot ? [{b: r.b, row}] : []));
  }

  // All that was seen of a slot. `row`: the one of this request that owns it, if any does.
  story(slot, row) {
    if (!this.seen) return [];
    const said = [], say = (evidence, text, wrong) => said.push({evidence, text, wrong: Boolean(wrong)});
    const sent = this.sent(slot), right = sent && (row === undefined ? !sent.length : sent.length === 1 && sent[0].b === this.request.b && sent[0].row === row);
    if (sent && !right) say("declared", sent.length ? `${this.names(sent)} to be written here` : "no row to be written here", true);
    const {wrong, missing, any} = this.seen.writes[this.index], odd = wrong.find(([at]) => at === slot);
    if (odd) say("measured", `holds K of ${this.holder(odd[1])} and V of ${this.holder(odd[2])}`, true);
    else if (any && row !== undefined) say("measured", missing.includes(row) ? "not written" : `written by row ${row}`, missing.includes(row));
    const found = this.readers(slot), stray = found.filter(f => !f.right);
    if (found.length) say("measured", `read by ${this.names(found)}`, stray.length === found.length);
    if (stray.length && stray.length < found.length) say("measured", `must not be read by ${this.names(stray)}`, true);
    return said;
  }

  // Whose K or V a slot holds, by the flat row that was found in it.
  holder(n) {
    return n === -1 ? "as before" : n === -2 ? "what no row brought" : n === -3 ? "a padded row" : n < -3 ? "a row in part" : `row ${n - this.seen.first[this.index]}`;
  }

  // Slots of others, or of nobody, that this request read, wrote or is to write.
  strays() {
    const own = new Set(this.request.slots), found = new Set();
    if (!this.seen) return found;
    for (const read of this.seen.reads[this.index] || []) for (const [slot] of read ? read[1] : []) found.add(slot);
    for (const [slot] of this.seen.writes[this.index].wrong) found.add(slot);
    for (const slot of this.seen.slots[this.index] || []) found.add(slot);
    return new Set([...found].filter(slot => slot >= 0 && !own.has(slot)));
  }

  // Pages that hold verify rows of this request or strays, and the prefix columns beside them.
  draw() {
    const r = this.request, size = this.data.page, pages = new Map(), first = r.prefix - r.prefix_slots.length;
    const put = (slot, what) => {
      if (slot < 0) return;
      const page = Math.floor(slot / size);
      if (!pages.has(page)) pages.set(page, new Map());
      pages.get(page).set(slot, what);
    };
    for (const slot of this.strays()) put(slot, {stray: true});
    r.prefix_slots.forEach((slot, i) => put(slot, {column: first + i}));
    r.slots.forEach((slot, row) => put(slot, {row}));
    const leaves = [...pages].filter(([, slots]) => [...slots.values()].some(what => what.column === undefined)).sort(([a], [b]) => a - b).map(([page, slots]) => {
      const cells = [...Array(Math.min(size, 64)).keys()].map(i => page * size + i).map(slot => [slot, slots.get(slot)]);
      return el("div", {className: "leaf"}, size === 1 ? `slot ${page}` : `page ${page}`,
        el("ol", {}, ...cells.map(([slot, what]) => el("li", {}, this.cell(slot, what)))));
    });
    return el("section", {}, el("h4", {textContent: "The KV pool: who owns, read and wrote each slot"}), el("div", {className: "slots"}, ...leaves), this.writes());
  }

  cell(slot, what) {
    const r = this.request, title = words => `slot ${slot}: ${words}`;
    if (!what) return el("span", {className: "free", textContent: "·", title: title("none of this request")});
    if (what.column !== undefined) return el("span", {className: "free", textContent: `P${what.column}`, title: title(`prefix column ${what.column}`)});
    const story = this.story(slot, what.row), told = story.map(one => `; ${one.text}`).join("");
    const kind = story.some(one => one.wrong) ? "bad" : "";
    if (what.stray) return el("span", {className: `free ${kind}`, textContent: this.tenant(slot) || "nobody's", title: title(`${this.tenant(slot) || "nobody's"}${told}`)});
    const held = this.held(what.row), sent = this.seen && this.sent(slot), others = sent ? sent.filter(one => one.b !== r.b || one.row !== what.row) : [];
    const text = held !== null ? `r${what.row}≠${held}` : others.length || (sent && !sent.length) ? `r${what.row}←${sent.map(one => `r${one.row}`).join(" ") || "–"}` : `r${what.row}`;
    const button = el("button", {type: "button", className: held === null ? kind : "bad", textContent: text,
      title: title(`column ${r.prefix + what.row}, row ${what.row}${held === null ? "" : `; holds ${held < 0 ? "no row" : `row ${held}`}`}${told}`)});
    return this.drawing.picker(button, what.row);
  }

  // The row that the evidence finds in the slot of another; null: its own, or not determined.
  held(row) {
    const found = this.data.recovered.find(f => f.what === "rows"), value = found ? this.drawing.valuesOf(found)[row] : null;
    return value === undefined || value === null || value === row ? null : value;
  }

  // Writes that no row of this request owed, and rows that were not written.
  writes() {
    if (!this.seen) return null;
    const {wrong, missing} = this.seen.writes[this.index], {slots} = this.request;
    const whose = slot => this.tenant(slot) ? ` (${this.tenant(slot)})` : ", nobody's,";
    const lines = [...wrong.map(([slot, k, v]) => `slot ${slot}${whose(slot)} now holds K of ${this.holder(k)} and V of ${this.holder(v)}`),
      ...missing.map(row => `slot ${slots[row]} was not written: K and V of row ${row} are missing`)];
    return lines.length ? el("ul", {className: "wrong"}, ...lines.slice(0, 40).map(line => el("li", {textContent: line}))) : null;
  }
}
