const columns = n => `${n} column${n === 1 ? "" : "s"}`;

// One failure of a script of rounds: of each round the trees, the accepted path, lengths and slots.
class Rounds {
  constructor(article, canvas, data) {
    this.article = article;
    this.canvas = canvas;
    this.data = data;
    this.name = article.id.replace("-", " ");
  }

  draw() {
    const {rounds, step, left_out: left} = this.data;
    const parts = rounds.map(round => this.round(round));
    if (this.data.otherwise) parts.unshift(el("p", {className: "wrong", textContent: `Drawn is a second run of the script, which went wrong elsewhere, in step ${step}.`}));
    if (left) parts.unshift(el("p", {className: "dim", textContent: `${left} rounds before these are left out.`}));
    if (step && !rounds.some(round => round.step === step))
      parts.push(el("p", {className: "wrong", textContent: this.elsewhere(step)}));
    this.canvas.replaceChildren(...[...parts, originalCase(this.data.original)].filter(Boolean));
  }

  elsewhere(step) {
    return step > this.data.steps ? "It went wrong once the script was over." : `It went wrong in step ${step}, which is no round.`;
  }

  round(round) {
    const wrong = round.step === this.data.step;
    const title = `Round in step ${round.step}${wrong ? ": it went wrong here" : ""}`;
    return el("section", {className: wrong ? "round wrong-here" : "round"}, el("h4", {textContent: title}),
      el("div", {className: "row"}, ...round.turns.map(turn => this.turn(round, turn))));
  }

  turn(round, turn) {
    const rows = turn.parents.length, over = turn.after !== null, pickers = [];
    const due = new Set(turn.due), taken = new Set(over ? turn.accepted : turn.due);
    const [b, at] = this.data.at, odd = round.step === this.data.step && b === turn.request ? at : null;
    const state = i => i === odd ? "bad" : !over ? (due.has(i) ? "due" : "") : taken.has(i) ? (due.has(i) ? "taken" : "bad") : due.has(i) ? "bad" : "";
    const words = i => !over ? (due.has(i) ? "to be accepted" : "to be refused")
      : taken.has(i) ? (due.has(i) ? "accepted" : "accepted, and must not be") : due.has(i) ? "not accepted, and must be" : "refused";
    const line = el("p", {className: "mono dim", ariaLive: "polite"});
    const pick = i => {
      for (const {node, row} of pickers) node.classList.toggle("picked", row === i);
      const slot = this.slot(turn, turn.ready === null ? null : turn.ready + i);
      line.textContent = [`row ${i}`, turn.tokens.length ? `token ${turn.tokens[i]}` : null,
        turn.ready === null ? null : `column ${turn.ready + i}`, slot === null ? null : `slot ${slot}`, words(i)].filter(Boolean).join(", ");
    };
    const note = (node, row) => {
      pickers.push({node, row});
      node.addEventListener("click", () => pick(row));
      return node;
    };
    const picture = treePicture({
      parents: turn.parents, label: String, state, pick, note, say: i => `row ${i}, ${words(i)}`,
      title: `tree of request ${turn.request}, step ${round.step}, ${this.name}`, edgeState: i => taken.has(i) ? (over ? "taken" : "due") : "",
    });
    return el("figure", {}, el("figcaption", {textContent: this.caption(turn, rows, over)}), picture, this.slots(round, turn, note), line);
  }

  caption(turn, rows, over) {
    const before = turn.ready === null ? "" : `${columns(turn.ready)} ready, `;
    const drafted = `request ${turn.request}: ${before}${rows - 1} drafted`;
    if (turn.ready === null) return `${drafted}; dashed: the path to be accepted`;
    if (!over) return `${drafted}; the round did not come to its end. Dashed: the path to be accepted`;
    return `${drafted}, ${turn.accepted.length - 1} accepted; then ${columns(turn.after)} ready. Emitted: ${turn.emitted.join(" ")}`;
  }

  slot(turn, column) {
    if (column === null) return null;
    const size = this.data.page, page = turn.pages[Math.floor(column / size)];
    return page === undefined || page < 0 ? null : page * size + column % size;
  }

  // Pages of the request: columns that were ready, rows of the tree, and which row each accepted column holds.
  slots(round, turn, note) {
    if (turn.ready === null || !turn.pages.length) return null;
    const size = this.data.page, end = turn.ready + turn.parents.length;
    const first = Math.max(0, Math.floor((turn.ready - 1) / size) - 2);
    const leaves = [];
    for (let number = first; number * size < end; number++) {
      const cells = [];
      for (let column = number * size; column < Math.min(end, (number + 1) * size); column++) cells.push(this.cell(round, turn, column, note));
      const page = turn.pages[number];
      leaves.push(el("div", {className: "leaf"}, page < 0 ? "given back" : size === 1 ? `slot ${page}` : `page ${page}`, el("ol", {}, ...cells)));
    }
    const before = first ? el("span", {className: "dim", textContent: `${first} page${first === 1 ? "" : "s"} before`}) : null;
    return el("div", {className: "slots"}, before, ...leaves);
  }

  cell(round, turn, column, note) {
    const slot = this.slot(turn, column), row = column - turn.ready, [b, , at] = this.data.at;
    const odd = round.step === this.data.step && b === turn.request && at === column;
    const where = `${slot === null ? "no slot" : `slot ${slot}`}: column ${column}${odd ? ", which the failure is about" : ""}`;
    if (row < 0) return el("li", {}, el("span", {className: odd ? "free bad" : "free", textContent: `P${column}`, title: `${where}, ready before the round`}));
    const kept = turn.after !== null && column < turn.after, moved = kept ? turn.accepted[row] : row;
    const text = kept && moved !== row ? `r${row}←r${moved}` : `r${row}`;
    const said = turn.after === null ? "" : kept ? `; from now on row ${moved}` : "; free from now on";
    const button = el("button", {type: "button", className: odd ? "bad" : kept ? "kept" : "", textContent: text, title: `${where}, row ${row}${said}`});
    return el("li", {}, note(button, row));
  }
}
