// --- the drawings, unpacked once the page stands ---------------------------------------------------
let unpacked = null, ready = null;
const drawings = () => unpacked ??= (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("island").textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return ready = await new Response(stream).json();
})();
// A printer does not wait: what it is to draw lies ready by then.
addEventListener("load", () => setTimeout(drawings, 0));

const drawn = new Map();
function draw(article, all) {
  const details = article.querySelector("details.drawn"), canvas = details.querySelector(".canvas");
  details.open = true;
  if (drawn.has(article)) return drawn.get(article);
  const data = all[Number(details.dataset.drawing)];
  const drawing = data.missing ? null : new (data.rounds ? Rounds : Drawing)(article, canvas, data);
  if (drawing) drawing.draw();
  else canvas.replaceChildren(el("p", {className: "dim", textContent: `Nothing to draw: ${data.missing}`}));
  drawn.set(article, drawing);
  return drawing;
}
async function open(article) {
  article.querySelector("details.drawn").open = true;
  return draw(article, await drawings());
}

document.getElementById("no-script").hidden = true;

// --- the page --------------------------------------------------------------------------------------
const articles = [...document.querySelectorAll("article.failure")];
const texts = articles.map(a => a.textContent.toLowerCase());
for (const article of articles)
  article.querySelector("details.drawn").addEventListener("toggle", event => { if (event.target.open) open(article); });

document.addEventListener("click", async event => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const code = button.previousElementSibling, words = code.textContent;
  try { await navigator.clipboard.writeText(words); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(code); button.textContent = "selected"; }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});

const find = document.getElementById("find");
if (find) {
  const backend = document.getElementById("by-backend"), identity = document.getElementById("by-identity"), count = document.getElementById("count");
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    articles.forEach((a, i) => {
      const fits = (!backend.value || a.dataset.backend === backend.value) && (!identity.value || a.dataset.identity === identity.value)
        && words.every(w => texts[i].includes(w));
      a.hidden = !fits;
      shown += fits;
    });
    count.textContent = shown === articles.length ? "" : `${shown} of ${articles.length} shown`;
  };
  for (const input of [find, backend, identity]) input.addEventListener("input", filter);
  find.form.addEventListener("submit", event => event.preventDefault());
}

let here = -1;
document.addEventListener("keydown", event => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const visible = articles.filter(a => !a.hidden);
  if (event.key === "/" && find) { event.preventDefault(); find.focus(); }
  else if ((event.key === "j" || event.key === "k") && visible.length) {
    here = Math.max(0, Math.min(visible.length - 1, here + (event.key === "j" ? 1 : -1)));
    visible[here].querySelector("h3 a").focus();
    visible[here].scrollIntoView({block: "start"});
  } else if (event.key === "o" && visible[here]) open(visible[here]);
});

// `#failure-2/0/3`: failure 2, request 0, row 3.
async function follow() {
  const [id, b, row] = location.hash.slice(1).split("/");
  const article = articles.find(a => a.id === id);
  if (!article) return;
  article.hidden = false;
  article.scrollIntoView({block: "start"});
  if (b === undefined) return;
  const drawing = await open(article);
  if (!drawing || !drawing.data.requests) return;
  const index = drawing.data.requests.findIndex(r => r.b === Number(b));
  if (index >= 0) drawing.show(index, Number(row) || 0);
}
addEventListener("hashchange", follow);
follow();

const MOST_PRINTED = 40; // drawings on paper, of the failures that the filters leave
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("main > section > details")) details.open = true;
  if (ready) for (const article of articles.filter(a => !a.hidden).slice(0, MOST_PRINTED)) draw(article, ready);
});
