// Live rows: inserts the contents of `rows` messages in log order: the first at once, those that follow it in batches.
//
// Each piece of a message is an element:
//   no hx-swap-oob            a row: appended to the timeline, once
//   hx-swap-oob="true"        replaces the element with its id; if there is none and it has data-append: appended
//   hx-swap-oob="how:#where"  changes or replaces that element; if there is none: as above
//
// htmx is not asked to swap them: it would search the whole list for its attributes after each one.
"use strict";
(() => {
  const MOST_PIECES = 2000; // text nodes in one streaming output
  const MOST_WAITING = 400; // messages of a hidden page; beyond this limit their rows are loaded when it is shown
  const MOST_A_FRAME = 64_000; // characters: beyond this limit the rest waits for the next frame
  const BETWEEN_MS = 100; // a frame costs the same for one row and for ten, and the words of an answer come by the dozen
  const FACTS_MS = 500;
  const NEW_MS = 2500; // how long a row is marked as new, at least
  const HIDDEN_MS = 250; // a hidden page has no animation frames

  const timeline = document.getElementById("timeline");
  if (!timeline) return;

  const edges = window.timelineEdges;
  const digest = window.timelineDigest; // not on every page
  const seqOf = (id) => Number.parseInt(id, 10) || 0; // "n", or "n.k" after the database was restored k times
  const following = () => "following" in timeline.dataset;
  const emit = (name, detail) => timeline.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  const isShown = (row) => row.dataset.shows.split(" ").includes(timeline.dataset.show ?? "all");

  // --- Messages ----------------------------------------------------------------------------------------------------

  let waiting = []; // { data, from, to, at }: the events after seq `from`, up to seq `to`, and when they came
  let frame = 0;
  let flushed = -Infinity;

  // The cursor moves at once, so that a new connection does not repeat what waits for a frame.
  timeline.addEventListener("htmx:sseBeforeMessage", (event) => {
    event.preventDefault();
    const { data, lastEventId } = event.detail;
    const from = seqOf(timeline.dataset.last);
    if (seqOf(lastEventId) <= from) return;
    timeline.dataset.last = lastEventId;
    waiting.push({ data, from, to: seqOf(lastEventId), at: performance.now() });
    if (waiting.length > MOST_WAITING) cut();
    schedule();
  });

  function schedule() {
    if (frame) return;
    const wait = document.hidden ? HIDDEN_MS : flushed + BETWEEN_MS - performance.now();
    frame = wait > 0 ? setTimeout(flush, wait) : requestAnimationFrame(flush);
  }
  // A frame that was asked for comes when the page is shown again.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && waiting.length) flush();
  });

  function cut() {
    const [first] = waiting;
    if (!edges.isCut()) edges.offerNewer(first.from, following());
    updateOnly();
    if (following()) edges.loadNewest();
  }

  // What changes rows of the page does not come again with the newer ones.
  function updateOnly() {
    const messages = waiting;
    waiting = [];
    for (const { data } of messages) [...edges.parse(data).children].forEach(update);
  }

  function flush() {
    frame = 0;
    flushed = performance.now();
    emit("agentops:before-rows");
    const change = { added: 0, events: 0 };
    try {
      const messages = nextMessages();
      messages.forEach(measure);
      for (const message of messages) place(message, change);
    } catch (fault) {
      console.error(fault);
      emit("agentops:start-over");
      return;
    }
    emit("agentops:rows", change);
    if (change.added && following() && edges.isLong()) askToShorten();
    else if (waiting.length) schedule();
  }

  // Rows leave at the top in a frame in which no others come. In the same frame, where the browser does not hold the rows
  // on the screen in place, it counts all of them as moved.
  function askToShorten() {
    if (document.hidden) shorten();
    else frame = requestAnimationFrame(() => requestAnimationFrame(shorten));
  }

  function shorten() {
    frame = 0;
    if (following()) edges.shortenFollowed();
    if (waiting.length) schedule();
  }

  // The rows loaded last end where the stream continues: what came after them comes again.
  timeline.addEventListener("agentops:before-end", updateOnly);
  timeline.addEventListener("agentops:rows-reach-end", ({ detail: { cursor } }) => {
    if (timeline.dataset.last === cursor) return;
    timeline.dataset.last = cursor;
    emit("agentops:reopen");
  });

  // At least one, and no more than a frame has time for.
  function nextMessages() {
    const messages = [];
    let size = 0;
    while (waiting.length && (!size || size + waiting[0].data.length < MOST_A_FRAME)) {
      const message = waiting.shift();
      size += message.data.length;
      messages.push({ ...message, pieces: [...edges.parse(message.data).children] });
    }
    return messages;
  }

  // --- Pieces ------------------------------------------------------------------------------------------------------

  function place({ pieces, from, to, at }, change) {
    const fresh = pieces.filter(isNewRow);
    change.events += to - from;
    if (!edges.isCut() && !following() && edges.isFull()) edges.offerNewer(from);
    if (digest?.takes(fresh, from, at) || edges.isCut()) {
      digest?.note(to - from, fresh);
      pieces.forEach(update);
      return;
    }
    const rows = [];
    for (const piece of pieces) {
      if (update(piece) || !isNewRow(piece) || isThere(piece)) continue;
      piece.removeAttribute("hx-swap-oob");
      mark(piece);
      timeline.append(piece);
      edges.prepare(piece);
      rows.push(piece);
    }
    change.added += rows.length;
  }

  // A card that was removed at the top is restored by "Load older events", not appended at the end.
  function isNewRow(piece) {
    const how = piece.getAttribute("hx-swap-oob");
    if (!piece.dataset.seq || (how && !("append" in piece.dataset)) || !isShown(piece)) return false;
    return !how || !(targetOf(piece, how) || isAbove(piece));
  }

  // A model call that a runner starts again without ending it has the id of the one before. As in a page that is loaded,
  // the earlier card stays, under another id (runs/pages/timeline/fold.py).
  function isThere(piece) {
    const card = document.getElementById(piece.id);
    const isAnother = card?.matches(".card-assistant") && seqOf(card.dataset.seq) < seqOf(piece.dataset.seq);
    if (!isAnother) return Boolean(card);
    const named = [card, ...card.querySelectorAll(`[id^="${piece.id}-"]`)];
    for (const element of named) element.id = element.id.replace(piece.id, `${piece.id}-${card.dataset.seq}`);
    return false;
  }

  function isAbove(piece) {
    const first = timeline.querySelector(":scope > [data-seq]");
    return Boolean(first) && seqOf(piece.dataset.seq) < seqOf(first.dataset.seq);
  }

  function targetOf(piece, how) {
    return document.getElementById(how === "true" ? piece.id : how.slice(how.indexOf("#") + 1));
  }

  // Changes what a piece is for, if the page has it. Returns whether it did.
  function update(piece) {
    const how = piece.getAttribute("hx-swap-oob");
    const target = how ? targetOf(piece, how) : null;
    if (!target) return false;
    piece.removeAttribute("hx-swap-oob");
    // A card that was cut off lacks the text in between; the finished one replaces it.
    if (how.startsWith("beforeend")) edges.isCut() || grow(target, piece);
    else if (target.id === "facts" || target.id === "run-line") renew(piece);
    else replace(target, piece);
    return true;
  }

  // A card keeps its original seq: one that is restarted after a crash has a higher one.
  function replace(target, piece) {
    const { seq } = target.dataset;
    if (seq && seqOf(seq) < seqOf(piece.dataset.seq)) piece.dataset.seq = seq;
    emit("agentops:replace", { target, fresh: piece });
    target.replaceWith(piece);
    edges.prepare(piece);
  }

  // Limit the text of a streaming output, to bound memory; the page of the call has all of it. An element that is
  // scrolled to its end stays there. All are measured before anything changes, because that needs a layout.
  const atEnd = new Map();
  function measure({ pieces }) {
    for (const piece of pieces) {
      const how = piece.getAttribute("hx-swap-oob");
      const target = how?.startsWith("beforeend") ? targetOf(piece, how) : null;
      if (!target || atEnd.has(target)) continue;
      atEnd.set(target, target.scrollHeight - target.scrollTop - target.clientHeight < 4);
    }
  }

  function grow(target, piece) {
    while (target.childNodes.length > MOST_PIECES) target.firstChild.remove();
    target.append(...piece.childNodes);
  }
  timeline.addEventListener("agentops:rows", () => {
    for (const [target, stays] of atEnd) if (stays) target.scrollTop = target.scrollHeight;
    atEnd.clear();
  });

  // The rail of a row that has just come is coloured for a while. Not by an animation, which would keep the page busy.
  const marked = []; // { row, until }
  let unmarking = 0;
  function mark(row) {
    row.dataset.isNew = "";
    marked.push({ row, until: performance.now() + NEW_MS });
    unmarking ||= setTimeout(unmark, NEW_MS);
  }

  function unmark() {
    const now = performance.now();
    while (marked.length && marked[0].until <= now) delete marked.shift().row.dataset.isNew;
    unmarking = marked.length ? setTimeout(unmark, NEW_MS / 2) : 0;
  }

  // The facts come with each message. They are read once in a while.
  const facts = new Map(); // by id, what was not shown yet
  const shownFacts = new Map(); // by id, { piece, html }: what the page shows, unless a reload of its head replaced it
  let renewed = -Infinity;
  let renewing = 0;
  function renew(piece) {
    facts.set(piece.id, piece);
    renewing ||= setTimeout(showFacts, Math.max(0, renewed + FACTS_MS - performance.now()));
  }

  function showFacts() {
    renewing = 0;
    renewed = performance.now();
    for (const [id, piece] of facts) {
      const target = document.getElementById(id);
      const html = piece.outerHTML;
      const shown = shownFacts.get(id);
      if (!target || (target === shown?.piece && html === shown.html)) continue;
      replace(target, piece);
      shownFacts.set(id, { piece, html });
    }
    facts.clear();
  }
})();
