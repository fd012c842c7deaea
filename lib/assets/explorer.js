// The explorer: two systems' answers to one query, and for each sentence the characters that it rests on.
//
// `explorer(root, source)` draws it. A source has an `index` and the functions `page(query_id)`,
// `document(query_id, doc_id)` and `differences(left, right, measure)`, which return promises: `embedded`
// takes them from the blocks of a report, `asked` from the kernel of a notebook (see lib/explorer.py).
// Whatever comes from files (texts, titles, ids, names of runs) enters the page as text, never as markup.

const SIDES = ["left", "right"];
const PATIENCE = 15000; // milliseconds until a silent kernel is said to be silent
let explorers = 0; // on this page; their elements' ids differ by it
let questions = 0;

/** An element with attributes, listeners (`onclick`, ...) and children; a string becomes text. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false && child !== ""));
  return element;
}

/** Words from a file, kept from turning the direction of what stands beside them. */
const quoted = (text, attributes = {}) => h("bdi", attributes, String(text));
const hidden = (text) => h("span", { class: "unseen" }, text);
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Offsets in UTF-16 units, as JavaScript counts, of offsets in code points, as Python does. */
export function units(text, offsets) {
  if (!/[\ud800-\udbff]/.test(text)) return offsets;
  const places = new Map(offsets.map((offset) => [offset, text.length]));
  let points = 0;
  let reached = 0;
  for (const point of text) {
    if (places.has(points)) places.set(points, reached);
    points += 1;
    reached += point.length;
  }
  return offsets.map((offset) => places.get(offset));
}

/** Spans in order of their start, those that share characters joined. */
export function joined(spans) {
  const found = [];
  for (const { start, end } of [...spans].sort((a, b) => a.start - b.start || a.end - b.end)) {
    const last = found.at(-1);
    if (last && start < last.end) last.end = Math.max(last.end, end);
    else found.push({ start, end });
  }
  return found;
}

/** A document's parts as nodes, its spans in `mark` elements; also says how many characters are left out where. */
function written({ length, parts }, spans) {
  const nodes = [];
  const leaveOut = (from, to) =>
    nodes.push(h("p", { class: "gap" }, `Characters ${from} to ${to} are not in this page.`));
  let reached = 0;
  for (const [start, end, text] of parts) {
    if (start > reached) leaveOut(reached, start);
    const inside = spans.filter((span) => span.start >= start && span.end <= end);
    const cuts = units(text, inside.flatMap((span) => [span.start - start, span.end - start]));
    let done = 0;
    for (let n = 0; n < cuts.length; n += 2) {
      nodes.push(text.slice(done, cuts[n]), h("mark", {}, text.slice(cuts[n], cuts[n + 1])));
      done = cuts[n + 1];
    }
    nodes.push(text.slice(done));
    reached = end;
  }
  if (reached < length) leaveOut(reached, length);
  return nodes.filter((node) => node !== "");
}

/** Which of two values is higher, in words. */
function compared(left, right) {
  if (left == null || right == null) return "–";
  const difference = left - right;
  if (Math.abs(difference) < 1e-9) return "equal";
  const amount = Math.abs(difference) < 0.0005 ? "by less than 0.001" : `by ${Math.abs(difference).toFixed(3)}`;
  return `${difference > 0 ? "left" : "right"} ${amount}`;
}

const signed = (value) => (value == null ? "no value" : `${value < 0 ? "" : "+"}${value.toFixed(3)}`);
const judged = ({ relevant }) => (relevant == null ? "not judged" : relevant ? "relevant" : "not relevant");

/**
 * Draw an explorer in `root`. `level` is that of its first headings, `hash` says whether the address keeps the view,
 * `given` is a view to begin with, and `changed` hears of every other one. Returns `show(view)` and `close()`.
 */
export function explorer(root, source, { level = 3, hash = false, given = {}, changed = () => {} } = {}) {
  const { index } = source;
  const base = `explorer-${(explorers += 1)}`;
  const title = (step, ...rest) => h(`h${Math.min(6, level + step)}`, ...rest);
  const view = { query: index.queries[0].query_id, left: index.left, right: index.right, shown: null };
  let page = null;
  let turn = 0; // counts the pages that were asked for, so that a late one is not drawn
  let opened = 0; // and the documents
  let begun = false; // the address is left alone until the reader does something
  let order = index.queries.map((_, n) => n); // the queries as they are listed
  let beside = null; // the difference shown beside each, where that orders them

  // ------------------------------------------------------------------ controls
  const field = (name, label, control) =>
    h("div", { class: `field ${name}` }, h("label", { for: control.id }, label), control);
  const choice = (name, ...rest) => h("select", { id: `${base}-${name}`, ...rest[0] }, ...rest.slice(1));
  const systems = () => index.runs.map((run) => h("option", { value: run }, run));
  const search = h("input", { id: `${base}-search`, type: "search", autocomplete: "off", oninput: list, onkeydown: first });
  const chosen = choice("query", { onchange: () => open(chosen.value) });
  const sorting = choice("order", { onchange: arrange }, h("option", { value: "" }, "as in the slice"), measures());
  const sides = Object.fromEntries(
    SIDES.map((side) => [side, choice(side, { onchange: () => pick(side, sides[side].value) }, systems())]),
  );
  const before = h("button", { type: "button", onclick: () => step(-1) }, "Previous");
  const after = h("button", { type: "button", onclick: () => step(1) }, "Next");
  const count = h("p", { class: "count", id: `${base}-count` });
  const spoken = h("p", { class: "unseen", role: "status" });
  const body = h("div", { class: "page" });
  const panel = h("section", { class: "panel", id: `${base}-document`, "aria-label": "Document", onkeydown: leave });

  root.classList.add("explorer");
  root.replaceChildren(
    ...index.notes.map((note) => h("p", { class: "note" }, note)),
    h(
      "div",
      { class: "controls", role: "group", "aria-label": "Query and systems" },
      field("search", "Find a query by its words or id", search),
      index.measures.length > 0 && field("order", "Order the queries", sorting),
      field("query", "Query", chosen),
      h("div", { class: "steps" }, before, after, count),
      field("left", "Left system", sides.left),
      field("right", "Right system", sides.right),
    ),
    spoken,
    body,
  );

  function measures() {
    return index.measures.map(({ name, heading }) => h("option", { value: name }, `by left - right: ${heading}`));
  }

  function say(words) {
    spoken.textContent = "";
    setTimeout(() => (spoken.textContent = words)); // so that the same words are said again
  }

  // ------------------------------------------------------------------ the list of queries
  function listed() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return order.filter((n) => {
      const { query_id, text } = index.queries[n];
      const all = `${query_id} ${text}`.toLowerCase();
      return words.every((word) => all.includes(word));
    });
  }

  function list() {
    const found = listed();
    const options = found.map((n) => {
      const { query_id, text } = index.queries[n];
      const label = beside ? `${signed(beside[n])} · ${n + 1}. ${text}` : `${n + 1}. ${text}`;
      return h("option", { value: query_id }, label || query_id);
    });
    const here = found.findIndex((n) => index.queries[n].query_id === view.query);
    const { length } = index.queries;
    count.textContent = search.value.trim()
      ? `${found.length} of ${length} queries match`
      : `${here + 1} of ${length}`;
    if (here < 0) options.unshift(h("option", { value: "", disabled: true }, found.length ? "choose one" : "none"));
    chosen.replaceChildren(...options);
    chosen.value = here < 0 ? "" : view.query;
    before.setAttribute("aria-disabled", String(here <= 0 && !(here < 0 && found.length)));
    after.setAttribute("aria-disabled", String(here === found.length - 1));
    if (search.value.trim() && document.activeElement === search) say(count.textContent);
  }

  function first(event) {
    const found = listed();
    if (event.key === "Enter" && found.length) open(index.queries[found[0]].query_id);
  }

  function step(by) {
    const found = listed().map((n) => index.queries[n].query_id);
    const here = found.indexOf(view.query);
    const next = here < 0 ? found.at(by > 0 ? 0 : -1) : found[here + by];
    if (next !== undefined) open(next);
  }

  async function arrange() {
    const measure = sorting.value;
    const asked = [view.left, view.right, measure].join("\n");
    let found = null;
    try {
      found = measure ? await source.differences(view.left, view.right, measure) : null;
    } catch (error) {
      return fail(error.message);
    }
    if (asked !== [view.left, view.right, sorting.value].join("\n")) return undefined;
    beside = found;
    order = index.queries.map((_, n) => n);
    const value = (n) => (beside[n] == null ? -Infinity : beside[n]);
    if (beside) order.sort((a, b) => value(b) - value(a) || a - b);
    return list();
  }

  // ------------------------------------------------------------------ the view
  function open(query) {
    Object.assign(view, { query, shown: null });
    return turnPage();
  }

  function pick(side, run) {
    view[side] = run;
    if (view.shown?.side === side || view.shown?.doc_id) view.shown = null;
    draw();
    told();
    if (sorting.value) arrange();
  }

  async function turnPage() {
    const mine = (turn += 1);
    const aloud = begun;
    list();
    told();
    body.setAttribute("aria-busy", "true");
    try {
      const found = await source.page(view.query);
      if (mine !== turn) return;
      page = found;
      draw();
      if (aloud) say(`Query ${index.queries.findIndex(({ query_id }) => query_id === view.query) + 1}: ${page.text}`);
    } catch (error) {
      if (mine !== turn) return;
      page = null;
      body.replaceChildren();
      fail(error.message);
    } finally {
      if (mine === turn) body.removeAttribute("aria-busy");
    }
  }

  function fail(words) {
    body.prepend(h("p", { class: "note", role: "alert" }, words));
  }

  function told() {
    const { query, left, right, shown } = view;
    if (hash && begun) {
      const address = new URLSearchParams({ query, left, right });
      if (shown?.side) address.set("sentence", `${shown.side}-${shown.number + 1}`);
      if (shown?.doc_id) address.set("document", shown.doc_id);
      history.replaceState(null, "", `#${address}`);
    }
    changed({ query, left, right });
  }

  /** Take over a view; what it names and the sweep does not have is said. Returns a promise of its page. */
  function show({ query, left, right, sentence = null, doc_id = null }) {
    const missing = [];
    if (query && !index.queries.some(({ query_id }) => query_id === query)) missing.push(`query ${query}`);
    else if (query) view.query = query;
    for (const [side, run] of [["left", left], ["right", right]]) {
      if (run && !index.runs.includes(run)) missing.push(`system ${run}`);
      else if (run) view[side] = run;
    }
    view.shown = null;
    const [, side, number] = /^(left|right)-([1-9]\d*)$/.exec(sentence ?? "") ?? [];
    if (side && !missing.length) view.shown = { side, number: Number(number) - 1 };
    else if (doc_id && !missing.length) view.shown = { doc_id };
    for (const name of SIDES) sides[name].value = view[name];
    const drawn = turnPage();
    if (sorting.value) arrange();
    if (missing.length) drawn.then(() => fail(`Not here: ${missing.join(", ")}.`));
    return drawn;
  }

  // ------------------------------------------------------------------ a page
  const answer = (side) => page.answers.find(({ run }) => run === view[side]);
  const place = (doc_id) => page.documents.findIndex((document) => document.doc_id === doc_id);

  function draw() {
    if (!page) return;
    body.replaceChildren(
      title(0, { class: "question" }, quoted(page.text || "(a query without text)")),
      h("p", { class: "about" }, "query_id ", quoted(page.query_id, { class: "id" })),
      gold(),
      h(
        "div",
        { class: index.measures.length ? "view scored" : "view" },
        h("div", { class: "sides" }, SIDES.map(column)),
        scores(),
        panel,
      ),
      candidates(),
    );
    for (const side of SIDES) sides[side].value = view[side];
    drawPanel(false);
  }

  function gold() {
    if (page.gold == null) return h("p", { class: "about" }, "This query has no gold answer.");
    return h("p", { class: "gold" }, h("strong", {}, "Gold answer "), quoted(page.gold));
  }

  function column(side) {
    const { run, note, fallback, sentences } = answer(side);
    const id = `${base}-${side}-title`;
    const kind = fallback || !sentences.length ? "note" : "about";
    return h(
      "section",
      { class: `answer ${side}`, "aria-labelledby": id },
      title(1, { id }, hidden(`Answer of the ${side} system, `), quoted(run)),
      note && h("p", { class: kind }, quoted(note)),
      sentences.length > 0 && h("ol", {}, ...sentences.map((sentence, n) => h("li", {}, ...spoke(side, sentence, n)))),
    );
  }

  function spoke(side, { text, sources }, number) {
    const button = h(
      "button",
      {
        type: "button",
        class: "sentence",
        "aria-pressed": "false",
        "aria-controls": panel.id,
        "data-side": side,
        "data-number": number,
        onclick: () => press({ side, number }),
        onkeydown: walk,
      },
      quoted(text, { class: "said" }),
      " ",
      cites(sources),
    );
    const skip = h("a", { class: "skip", href: `#${panel.id}`, hidden: true, onclick: enter }, "Go to the document");
    return [button, skip];
  }

  function cites(sources) {
    const documents = [...new Set(sources.map(({ doc_id }) => doc_id))].map((doc_id) => page.documents[place(doc_id)]);
    if (!documents.length) return h("span", { class: "cites" }, "[no source]");
    return h(
      "span",
      { class: "cites" },
      hidden(" cites "),
      documents.map(({ doc_id, relevant }) => {
        const number = place(doc_id) + 1;
        const sign = relevant == null ? "" : relevant ? " ✓" : " ✗";
        return h(
          "span",
          { class: relevant ? "relevant" : "" },
          h("span", { "aria-hidden": "true" }, `[${number}${sign}]`),
          hidden(`document ${number}, ${judged({ relevant })}; `),
        );
      }),
    );
  }

  function walk(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = [...event.currentTarget.closest("ol").querySelectorAll(".sentence")];
    const next = by && all[all.indexOf(event.currentTarget) + by];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }

  function scores() {
    if (!index.measures.length) return null;
    const [left, right] = SIDES.map((side) => answer(side).scores);
    const rows = index.measures.map(({ name, heading }, n) => {
      const words = compared(left[n][0], right[n][0]);
      return h(
        "tr",
        {},
        h("th", { scope: "row", title: name }, heading),
        [left, right].map((row, side) => scored(row[n], words.startsWith(SIDES[side]))),
        h("td", { class: "higher" }, words),
      );
    });
    return h(
      "section",
      { class: "scores wide", tabindex: 0, "aria-label": "Scores of this query" },
      h(
        "table",
        {},
        h("caption", {}, "Scores of this query"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "measure"), names(), h("th", { scope: "col" }, "higher"))),
        h("tbody", {}, rows),
      ),
    );
  }

  function names() {
    return SIDES.map((side) => h("th", { scope: "col", class: side }, hidden(`${side}: `), quoted(view[side])));
  }

  function scored([value, status], higher) {
    if (value == null) return h("td", {}, h("small", {}, status));
    const shown = h(higher ? "strong" : "span", {}, value.toFixed(3));
    return h("td", {}, shown, status !== "ok" && h("small", {}, ` ${status}`));
  }

  function candidates() {
    const id = `${base}-candidates`;
    const told = page.judged ? "For a relevant document: how far it came." : "This query is not judged.";
    const heads = ["no.", "document", "year", "relevant"].map((name) => h("th", { scope: "col" }, name));
    return h(
      "section",
      { class: "candidates", "aria-labelledby": id },
      title(1, { id }, "Candidate documents"),
      h(
        "div",
        { class: "wide", role: "region", tabindex: 0, "aria-labelledby": id },
        h(
          "table",
          {},
          h("caption", {}, `In the organiser's order. ${told}`),
          h("thead", {}, h("tr", {}, heads, names())),
          h("tbody", {}, page.documents.map(candidate)),
        ),
      ),
    );
  }

  function candidate(document, n) {
    const { doc_id, relevant, date, candidate: wanted } = document;
    const name = h(
      "button",
      {
        type: "button",
        class: "title",
        "aria-pressed": "false",
        "aria-controls": panel.id,
        "data-document": doc_id,
        onclick: () => press({ doc_id }),
      },
      quoted(document.title || `(no title) ${doc_id}`),
    );
    return h(
      "tr",
      { class: relevant ? "relevant" : "" },
      h("td", {}, String(n + 1)),
      h("th", { scope: "row" }, name, !wanted && h("small", {}, " not a candidate")),
      h("td", {}, date?.slice(0, 4) ?? "–"),
      h("td", {}, relevant == null ? "–" : relevant ? "✓ yes" : "no"),
      SIDES.map((side) => h("td", {}, quoted(used(side, doc_id)))),
    );
  }

  /** What a system's answer makes of a document: the sentences that cite it, or the stage that lost it. */
  function used(side, doc_id) {
    const { sentences, stages } = answer(side);
    const citing = sentences.flatMap(({ sources }, n) => (sources.some((s) => s.doc_id === doc_id) ? [n + 1] : []));
    if (citing.length) return `sentence ${citing.join(", ")}`;
    return (Object.hasOwn(stages, doc_id) && stages[doc_id]) || "–";
  }

  // ------------------------------------------------------------------ the document
  const alike = (a, b) => a?.side === b?.side && a?.number === b?.number && a?.doc_id === b?.doc_id;
  const presser = () => body.querySelector("[aria-pressed=true]");

  /** Show what a sentence rests on, or a candidate; once more hides it. */
  function press(wanted) {
    view.shown = alike(view.shown, wanted) ? null : wanted;
    told();
    drawPanel(true);
  }

  function close() {
    const button = presser();
    press(view.shown);
    button?.focus();
  }

  function markPressed() {
    for (const button of body.querySelectorAll("[aria-pressed]")) {
      const { side, number, document: doc_id } = button.dataset;
      const on = view.shown && alike(view.shown, side ? { side, number: Number(number) } : { doc_id });
      button.setAttribute("aria-pressed", String(Boolean(on)));
      if (side) button.nextElementSibling.hidden = !on;
    }
  }

  /** The sentence that is shown, if one is; a view that names what is not there shows nothing. */
  function shownSentence() {
    const { side, number, doc_id } = view.shown ?? {};
    const sentence = side && answer(side).sentences[number];
    if (!sentence && place(doc_id) < 0) view.shown = null;
    return sentence;
  }

  function drawPanel(moved) {
    const sentence = shownSentence();
    markPressed();
    panel.className = `panel ${view.shown?.side ?? ""}`;
    if (!view.shown) {
      const hint = "Choose a sentence to see the document and the words that it rests on, or a candidate below.";
      panel.replaceChildren(h("p", { class: "about" }, hint));
      return;
    }
    const sources = sentence ? sentence.sources : everything(view.shown.doc_id);
    const doc_ids = sentence ? [...new Set(sources.map(({ doc_id }) => doc_id))] : [view.shown.doc_id];
    const content = h("div", { class: "content", id: `${panel.id}-content` });
    const tabs = doc_ids.map((doc_id, n) => tab(doc_id, n, () => drawDocument(content, doc_id, sources, true)));
    panel.replaceChildren(from(sentence), content);
    if (tabs.length > 1) {
      content.before(h("div", { class: "tabs", role: "tablist", "aria-label": "Documents of this sentence" }, tabs));
      content.setAttribute("role", "tabpanel");
      select(tabs[0]);
    }
    if (doc_ids.length) {
      drawDocument(content, doc_ids[0], sources, moved);
    } else {
      content.append(h("p", {}, "No source is recorded for this sentence."));
      if (moved) say("No source is recorded for this sentence.");
    }
  }

  /** The head of the panel: whose sentence it is about, and the ways out. */
  function from(sentence) {
    const { side, number } = view.shown;
    const words = sentence
      ? [`Sentence ${number + 1} of `, quoted(view[side], { class: side }), ": ", quoted(`“${sentence.text}”`)]
      : ["Candidate; marked is what the two answers rest on."];
    const buttons = [
      h("button", { type: "button", onclick: back }, `Back to the ${sentence ? "sentence" : "list"}`),
      h("button", { type: "button", onclick: close }, "Close"),
    ];
    return h("div", { class: "from" }, h("p", {}, words), h("div", { class: "steps" }, buttons));
  }

  function tab(doc_id, n, onto) {
    return h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `${panel.id}-tab-${n}`,
        "aria-controls": `${panel.id}-content`,
        "aria-selected": "false",
        tabindex: -1,
        onclick: (event) => {
          select(event.currentTarget);
          onto();
        },
        onkeydown: (event) => {
          const all = [...event.currentTarget.parentElement.children];
          const here = all.indexOf(event.currentTarget);
          const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
          if (to === undefined) return;
          event.preventDefault();
          const next = all[(to + all.length) % all.length];
          next.focus();
          next.click();
        },
      },
      `Document ${place(doc_id) + 1}`,
    );
  }

  function select(chosenTab) {
    for (const other of chosenTab.parentElement.children) {
      other.setAttribute("aria-selected", String(other === chosenTab));
      other.tabIndex = other === chosenTab ? 0 : -1;
    }
    panel.querySelector(".content").setAttribute("aria-labelledby", chosenTab.id);
  }

  function everything(doc_id) {
    const all = SIDES.flatMap((side) => answer(side).sentences.flatMap(({ sources }) => sources));
    return all.filter((s) => s.doc_id === doc_id);
  }

  async function drawDocument(content, doc_id, sources, moved) {
    const about = page.documents[place(doc_id)];
    const here = sources.filter((s) => s.doc_id === doc_id);
    const mine = (opened += 1);
    content.setAttribute("aria-busy", "true");
    let found = null;
    try {
      found = await source.document(view.query, doc_id);
    } catch (error) {
      content.replaceChildren(h("p", { class: "note", role: "alert" }, error.message));
      return;
    } finally {
      content.removeAttribute("aria-busy");
    }
    if (mine !== opened || !content.isConnected) return;
    const kinds = new Set(here.map(({ field: kind }) => kind));
    const recorded = here.filter(({ field: kind }) => kind === "text");
    const fits = ({ start, end }) => start >= 0 && start < end && end <= (found?.length ?? 0);
    const spans = joined(recorded.filter(fits));
    const name = quoted(about.title || "(no title)");
    const label = `Text of document ${place(doc_id) + 1}`;
    const text = h("div", { class: "text", tabindex: 0, role: "region", "aria-label": label });
    if (found) text.append(...written(found, spans));
    const marks = [...text.querySelectorAll("mark")];
    const remarks = [
      !found && "This document is not in the slice.",
      found?.length === 0 && "This document has no text.",
      kinds.has("title") && "Its title is what the answer rests on.",
      kinds.has("document") && "It is cited without a span of its text.",
      recorded.some((span) => !fits(span)) && "A recorded span does not lie in this document: run 'workbook audit'.",
      spans.length > 0 && `Characters ${spans.map(({ start, end }) => `${start} to ${end}`).join("; ")}`,
    ].filter(Boolean);
    content.replaceChildren(
      title(1, { class: "name", tabindex: -1 }, kinds.has("title") ? h("mark", {}, name) : name),
      h("p", { class: "about" }, described(about)),
      h("p", { class: "remarks" }, remarks.join(" ")),
      marks.length > 1 ? stepper(text, marks) : "",
      text,
    );
    if (marks.length) reveal(text, marks[0], moved);
    if (moved) {
      panel.scrollIntoView({ block: "nearest", behavior: calm() ? "auto" : "smooth" });
      const evidence = marks.length ? ` Evidence: ${marks.map((node) => node.textContent).join(" … ")}` : "";
      say(`Document ${place(doc_id) + 1}, ${about.title}, ${judged(about)}.${evidence}`);
    }
  }

  function described({ doc_id, date, source: kind, relevant, candidate: wanted, length }) {
    const kinds = { fullText: "full text", abstract: "abstract", title: "title only", none: "no text" };
    const number = place(doc_id) + 1;
    const verdict = h("span", { class: relevant ? "badge relevant" : "badge" }, judged({ relevant }));
    const of = page.documents.filter((document) => document.candidate).length;
    return [
      verdict,
      h("span", {}, wanted ? `candidate ${number} of ${of}` : "not a candidate"),
      h("span", {}, date ?? "undated"),
      kind && h("span", {}, `${kinds[kind] ?? kind}, ${length} characters`),
      h("span", {}, "doc_id ", quoted(doc_id, { class: "id" })),
    ];
  }

  function stepper(text, marks) {
    let here = 0;
    const where = h("span", { role: "status" }, `Evidence 1 of ${marks.length}`);
    const go = (by) => () => {
      here = (here + by + marks.length) % marks.length;
      where.textContent = `Evidence ${here + 1} of ${marks.length}`;
      reveal(text, marks[here], true);
    };
    const button = (words, by) => h("button", { type: "button", onclick: go(by) }, words);
    return h("div", { class: "steps" }, button("Previous evidence", -1), where, button("Next evidence", 1));
  }

  /** Bring a mark into the upper third of the text's own window. */
  function reveal(text, node, smoothly) {
    for (const other of text.querySelectorAll("mark")) other.classList.toggle("here", other === node);
    const top = node.offsetTop - text.clientHeight / 3;
    text.scrollTo({ top, behavior: smoothly && !calm() ? "smooth" : "auto" });
  }

  function enter(event) {
    event.preventDefault(); // the address keeps the view
    (panel.querySelector(".name") ?? panel).focus();
  }

  function back() {
    const button = presser();
    button?.focus({ preventScroll: true });
    button?.scrollIntoView({ block: "center", behavior: calm() ? "auto" : "smooth" });
  }

  function leave(event) {
    if (event.key === "Escape") back();
  }

  // ------------------------------------------------------------------ the address
  function addressed() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("query")) return null;
    const [query, left, right] = ["query", ...SIDES].map((name) => asked.get(name));
    return { query, left, right, sentence: asked.get("sentence"), doc_id: asked.get("document") };
  }

  function follow() {
    const asked = addressed();
    if (asked) show(asked);
  }

  if (hash) addEventListener("hashchange", follow);
  const asked = hash ? addressed() : null;
  const ready = show(asked ?? given);
  begun = true;
  if (asked) ready.then(() => root.closest("section")?.scrollIntoView());
  return { show, close: () => removeEventListener("hashchange", follow) };
}

// -------------------------------------------------------------------- where the pages come from
/** The source in a report: blocks of the document in the index's order, each unpacked when it is needed. */
export function embedded(root = document) {
  const index = JSON.parse(root.querySelector("script[data-explorer]").textContent);
  const blocks = (kind, ids) => {
    const nodes = root.querySelectorAll(`script[data-${kind}]`);
    return new Map(ids.map((id, n) => [id, nodes[n]]));
  };
  const pages = blocks("page", index.queries.map(({ query_id }) => query_id));
  const documents = blocks("document", index.documents);
  const scores = root.querySelector("script[data-scores]");
  const column = (run) => index.runs.indexOf(run);
  return {
    index,
    page: (query_id) => unpacked(pages.get(query_id)),
    document: (_, doc_id) => unpacked(documents.get(doc_id)),
    async differences(left, right, measure) {
      const place = index.measures.findIndex(({ name }) => name === measure);
      const table = await unpacked(scores);
      const pairs = table.map((rows) => [rows[column(left)][place], rows[column(right)][place]]);
      return pairs.map(([a, b]) => (a == null || b == null ? null : a - b));
    },
  };
}

async function unpacked(node) {
  if (!("DecompressionStream" in globalThis)) {
    throw new Error("This browser cannot unpack the pages of the explorer; open the report in a browser of 2023 or later.");
  }
  const bytes = Uint8Array.from(atob(node.textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** The source in a notebook: questions to the kernel, each under a number of its own. */
export function asked(model) {
  const waiting = new Map();
  const hear = (message) => {
    const settle = waiting.get(message.number);
    waiting.delete(message.number);
    if (settle && "fault" in message) settle.reject(new Error(message.fault));
    else if (settle) settle.resolve(message.value);
  };
  const ask = (kind, given) =>
    new Promise((resolve, reject) => {
      const number = (questions += 1);
      waiting.set(number, { resolve, reject });
      setTimeout(() => {
        if (waiting.delete(number)) reject(new Error("The kernel does not answer: run the explorer's cell again."));
      }, PATIENCE);
      model.send({ number, kind, ...given });
    });
  model.on("msg:custom", hear);
  return {
    index: model.get("index"),
    page: (query_id) => ask("page", { query_id }),
    document: (query_id, doc_id) => ask("document", { query_id, doc_id }),
    differences: (left, right, measure) => ask("differences", { left, right, measure }),
    close: () => model.off("msg:custom", hear),
  };
}

/** What anywidget calls for every view of an `Explorer`. */
function render({ model, el }) {
  const source = asked(model);
  const names = { query: "query_id", left: "left", right: "right" };
  const theirs = () => Object.fromEntries(Object.entries(names).map(([key, name]) => [key, model.get(name)]));
  let now = JSON.stringify(theirs());
  const changed = (view) => {
    now = JSON.stringify(view);
    for (const [key, name] of Object.entries(names)) if (model.get(name) !== view[key]) model.set(name, view[key]);
    model.save_changes();
  };
  // Single keys are the reader's: JupyterLab would take "d d" for "delete the cell". Ctrl+S and its like still reach it.
  const keep = (event) => event.ctrlKey || event.metaKey || event.stopPropagation();
  const root = h("div", { onkeydown: keep });
  el.append(root);
  const drawn = explorer(root, source, { given: theirs(), changed });
  const follow = () => {
    if (JSON.stringify(theirs()) !== now) drawn.show(theirs());
  };
  for (const name of Object.values(names)) model.on(`change:${name}`, follow);
  return () => {
    for (const name of Object.values(names)) model.off(`change:${name}`, follow);
    drawn.close();
    source.close();
  };
}

export default { render };
