// Live rows: puts what a `rows` message holds where it belongs, moves the cursor, and keeps the page small.
//
// htmx would swap out-of-band pieces first and the rest afterwards, so a batch that opens a card, streams into it and
// goes on with other rows would come out of order. Here each piece is swapped by htmx on its own, in log order:
//   no hx-swap-oob            a row: appended to the timeline, once
//   hx-swap-oob="true"        replaces the element with its id; if there is none and it has data-append: appended
//   hx-swap-oob="how:#where"  changes or replaces that element; if there is none, likewise
"use strict";
(() => {
  const MOST_ROWS = 600; // while following: older ones go, and "load older" brings them back
  const STEP_ROWS = 60;
  const MOST_AWAY = 2000; // while the reader is elsewhere nothing may move, so from here on rows wait on the server
  const MOST_PIECES = 2000; // text nodes in one streaming output

  const timeline = document.getElementById("timeline");
  if (!timeline) return;

  const seqOf = (id) => Number.parseInt(id, 10) || 0; // "n", or "n.k" after the database was restored k times
  const following = () => "following" in timeline.dataset;
  const tellOthers = (name, detail) => timeline.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));

  // --- From a message to the page ----------------------------------------------------------------------------------

  timeline.addEventListener("htmx:sseBeforeMessage", (event) => {
    event.preventDefault();
    const { data, lastEventId } = event.detail;
    if (seqOf(lastEventId) <= seqOf(timeline.dataset.last)) return;
    if (!following() && timeline.childElementCount > MOST_AWAY) {
      tellOthers("agentops:rows-wait", { newest: seqOf(lastEventId), last: seqOf(timeline.dataset.last) });
      return;
    }
    try {
      const added = place(data);
      // Only now: a cursor that moved before an exception would hide the rows that were not placed.
      timeline.dataset.last = lastEventId;
      if (following()) shorten();
      tellOthers("agentops:rows", { added });
    } catch (fault) {
      console.error(fault);
      tellOthers("agentops:start-over");
    }
  });

  function place(html) {
    const parsed = document.createElement("template");
    parsed.innerHTML = html;
    const before = timeline.childElementCount;
    let plain = new DocumentFragment();
    for (const piece of [...parsed.content.children]) {
      const how = piece.getAttribute("hx-swap-oob");
      // What it speaks of may have come earlier in this batch: that must be on the page before it is looked for.
      if (how) plain = swap(plain);
      const target = how ? targetOf(piece, how) : null;
      if (target) {
        if (how.startsWith("beforeend")) grow(target, piece);
        else replace(target, piece);
      } else if (isNew(piece, how, plain)) {
        piece.removeAttribute("hx-swap-oob");
        plain.append(piece);
      }
    }
    swap(plain);
    const fresh = [...timeline.children].slice(before);
    return fresh.filter(isShown).length;
  }

  // Under a filter a row that is not shown is not kept either: it would use up the page's room.
  function isShown(row) {
    if (getComputedStyle(row).display !== "none") return true;
    row.remove();
    return false;
  }

  function targetOf(piece, how) {
    return how === "true" ? document.getElementById(piece.id) : document.querySelector(how.slice(how.indexOf(":") + 1));
  }

  // A card of a row that has left the page at the top (see shorten) comes back by "load older", not at the end.
  function isNew(piece, how, plain) {
    if (how) return "append" in piece.dataset && !isAbove(piece);
    return !piece.id || !(document.getElementById(piece.id) || plain.querySelector(`#${CSS.escape(piece.id)}`));
  }

  function isAbove(piece) {
    const first = timeline.querySelector(":scope > [data-seq]");
    return Boolean(first && piece.dataset.seq) && seqOf(piece.dataset.seq) < seqOf(first.dataset.seq);
  }

  function swap(piece) {
    if (piece instanceof DocumentFragment ? piece.childElementCount : piece) {
      const fragment = new DocumentFragment();
      fragment.append(piece);
      htmx.swap(timeline, fragment, { swapStyle: "beforeend", swapDelay: 0, settleDelay: 20 });
    }
    return new DocumentFragment();
  }

  // A card stays where it was opened: one that begins again after a crash does not know that it had begun before.
  function replace(target, piece) {
    const { seq } = target.dataset;
    if (seq && seqOf(seq) < seqOf(piece.dataset.seq)) piece.dataset.seq = seq;
    swap(piece);
  }

  // A program that prints for hours must not fill the memory of the browser: its page holds the whole output. A box
  // whose end the reader sees goes on showing the end.
  function grow(target, piece) {
    const atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 4;
    while (target.childNodes.length > MOST_PIECES) target.firstChild.remove();
    swap(piece);
    if (atEnd) target.scrollTop = target.scrollHeight;
  }

  // --- The page stays small ----------------------------------------------------------------------------------------

  function shorten() {
    const rows = [...timeline.querySelectorAll(":scope > [data-seq]")];
    if (rows.length <= MOST_ROWS) return;
    // A fifth at a time, so that this is rare; and down to the beginning of a step, if there is one near.
    const least = rows.length - Math.floor(MOST_ROWS * 0.8);
    const step = rows.slice(least, least + STEP_ROWS).findIndex((row) => row.matches(".step"));
    const cut = least + Math.max(step, 0);
    rows.slice(0, cut).forEach((row) => row.remove());
    offerOlder(rows[cut].dataset.seq);
  }

  function offerOlder(seq) {
    document.getElementById("older")?.remove();
    const { rowsUrl, show } = timeline.dataset;
    const query = `?before=${seq}${show && show !== "all" ? `&show=${show}` : ""}`;
    const item = document.createElement("li");
    const link = document.createElement("a");
    item.id = "older";
    item.className = "row older";
    // As in templates/timeline/_older.html.
    link.href = location.pathname + query;
    link.textContent = "Load older";
    link.setAttribute("hx-get", rowsUrl + query);
    link.setAttribute("hx-target", "#older");
    link.setAttribute("hx-swap", "outerHTML");
    link.setAttribute("hx-trigger", "intersect once, click");
    item.append(link);
    timeline.prepend(item);
    htmx.process(item);
  }

  // Older rows come in above what is being read, which stays where it is on the screen. Browsers do this by themselves
  // only away from the very top.
  let anchor = null;
  timeline.addEventListener("htmx:beforeSwap", ({ detail: { target } }) => {
    const row = target.id === "older" && target.nextElementSibling;
    anchor = row ? { row, top: row.getBoundingClientRect().top } : null;
  });
  timeline.addEventListener("htmx:afterSwap", () => {
    if (!anchor?.row.isConnected) return;
    const { row, top } = anchor;
    anchor = null;
    scrollBy({ top: row.getBoundingClientRect().top - top, behavior: "instant" });
  });
})();
