// Live rows: inserts the contents of `rows` messages, moves the cursor, and limits the number of rows on the page.
//
// htmx swaps out-of-band pieces first and the rest afterwards, so a batch that opens a card, streams into it and
// continues with other rows would be out of order. This script swaps each piece separately, in log order:
//   no hx-swap-oob            a row: appended to the timeline, once
//   hx-swap-oob="true"        replaces the element with its id; if there is none and it has data-append: appended
//   hx-swap-oob="how:#where"  changes or replaces that element; if there is none: as above
"use strict";
(() => {
  const MOST_ROWS = 600; // while following: older rows are removed; "Load older events" restores them
  const STEP_ROWS = 60;
  const MOST_AWAY = 2000; // while not following the page must not move: beyond this limit rows are not inserted
  const MOST_PIECES = 2000; // text nodes in one streaming output

  const timeline = document.getElementById("timeline");
  if (!timeline) return;

  const seqOf = (id) => Number.parseInt(id, 10) || 0; // "n", or "n.k" after the database was restored k times
  const following = () => "following" in timeline.dataset;
  const emit = (name, detail) => timeline.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));

  // --- Inserting rows --------------------------------------------------------------------------------------------

  timeline.addEventListener("htmx:sseBeforeMessage", (event) => {
    event.preventDefault();
    const { data, lastEventId } = event.detail;
    if (seqOf(lastEventId) <= seqOf(timeline.dataset.last)) return;
    if (!following() && timeline.childElementCount > MOST_AWAY) {
      emit("agentops:rows-wait", { newest: seqOf(lastEventId), last: seqOf(timeline.dataset.last) });
      return;
    }
    try {
      const added = place(data);
      // After place(): if it raises, the cursor must still be before the rows that were not inserted.
      timeline.dataset.last = lastEventId;
      if (following()) shorten();
      emit("agentops:rows", { added });
    } catch (fault) {
      console.error(fault);
      emit("agentops:start-over");
    }
  });

  function place(html) {
    const parsed = document.createElement("template");
    parsed.innerHTML = html;
    const before = timeline.childElementCount;
    let plain = new DocumentFragment();
    for (const piece of [...parsed.content.children]) {
      const how = piece.getAttribute("hx-swap-oob");
      // The target may be earlier in this batch, so insert pending rows first.
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

  // Rows hidden by the filter are removed: they would count towards MOST_ROWS.
  function isShown(row) {
    if (getComputedStyle(row).display !== "none") return true;
    row.remove();
    return false;
  }

  function targetOf(piece, how) {
    return how === "true" ? document.getElementById(piece.id) : document.querySelector(how.slice(how.indexOf(":") + 1));
  }

  // A card that was removed at the top (see shorten) is restored by "Load older events", not appended at the end.
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

  // A card keeps its original seq: one that is restarted after a crash has a higher one.
  function replace(target, piece) {
    const { seq } = target.dataset;
    if (seq && seqOf(seq) < seqOf(piece.dataset.seq)) piece.dataset.seq = seq;
    swap(piece);
  }

  // Limit the text of a streaming output, to bound memory; the page of the call has all of it. An element that is
  // scrolled to its end stays there.
  function grow(target, piece) {
    const atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 4;
    while (target.childNodes.length > MOST_PIECES) target.firstChild.remove();
    swap(piece);
    if (atEnd) target.scrollTop = target.scrollHeight;
  }

  // --- Limiting the size of the page --------------------------------------------------------------------------------

  function shorten() {
    const rows = [...timeline.querySelectorAll(":scope > [data-seq]")];
    if (rows.length <= MOST_ROWS) return;
    // Remove a fifth of the rows at a time, so that this is rare, and up to the start of a step if one is near.
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
    // Same as templates/timeline/_older.html.
    link.href = location.pathname + query;
    link.textContent = "Load older events";
    link.setAttribute("hx-get", rowsUrl + query);
    link.setAttribute("hx-target", "#older");
    link.setAttribute("hx-swap", "outerHTML");
    link.setAttribute("hx-trigger", "intersect once, click");
    item.append(link);
    timeline.prepend(item);
    htmx.process(item);
  }

  // Keep the scroll position when older rows are inserted above. Browsers do this themselves, except at the very top.
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
