// The two ends of a timeline: the links to older and newer rows, and the limit of the rows between them.
//
// The page keeps about 600 rows, and half of them while it follows the newest: each frame costs more the more rows there
// are. Rows that are loaded at one end push out rows at the other, and a link takes their place, which loads them again
// when it is scrolled to. `#older` is the first item of the list, `#newer` the last one. While `#newer` is there, events
// that arrive are not appended: there are others between them and the rows.
"use strict";
(() => {
  const STEP_ROWS = 60;

  const timeline = document.getElementById("timeline");
  if (!timeline) return;

  const MOST_ROWS = Number(timeline.dataset.mostRows) || 600;
  const byId = (id) => document.getElementById(id);
  const rows = () => [...timeline.querySelectorAll(":scope > [data-seq]")];
  const seqOf = (row) => Number.parseInt(row.dataset.seq, 10);
  const emit = (name, detail) => timeline.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));

  // --- The links ---------------------------------------------------------------------------------------------------

  // Same as templates/timeline/_older.html and _newer.html. `trigger`: what else than a click loads the rows.
  function linkItem(id, direction, seq, text, trigger = "intersect once, ") {
    byId(id)?.remove();
    const { rowsUrl, show } = timeline.dataset;
    const query = `?${direction}=${seq}${show && show !== "all" ? `&show=${show}` : ""}`;
    const item = document.createElement("li");
    const link = document.createElement("a");
    item.id = id;
    item.className = "row older";
    link.href = location.pathname + query;
    link.textContent = text;
    link.setAttribute("hx-get", rowsUrl + query);
    link.setAttribute("hx-target", `#${id}`);
    link.setAttribute("hx-swap", "outerHTML");
    link.setAttribute("hx-trigger", `${trigger}click`);
    item.append(link);
    return item;
  }

  function offerOlder(seq) {
    const item = linkItem("older", "before", seq, "Load older events");
    timeline.prepend(item);
    htmx.process(item);
  }

  // `isQuiet`: only a click loads the rows, also while the link is on the screen.
  function offerNewer(seq, isQuiet = false) {
    const item = linkItem("newer", "after", seq, "Load newer events", isQuiet ? "" : undefined);
    timeline.append(item);
    htmx.process(item);
    return item;
  }

  // --- The limit ---------------------------------------------------------------------------------------------------

  function leave(leaving) {
    emit("agentops:rows-leave", { rows: leaving });
    for (const row of leaving) row.remove();
  }

  // Removes a fifth of the rows at a time, so that this is rare, and up to the start of a step if one is near.
  function shortenTop(most = MOST_ROWS) {
    const all = rows();
    if (all.length <= most) return;
    const least = all.length - Math.floor(most * 0.8);
    const step = all.slice(least, least + STEP_ROWS).findIndex((row) => row.matches(".step"));
    const cut = least + Math.max(step, 0);
    leave(all.slice(0, cut));
    offerOlder(seqOf(all[cut]));
  }

  function shortenBottom() {
    const all = rows();
    if (all.length <= MOST_ROWS) return;
    const most = Math.floor(MOST_ROWS * 0.8);
    const step = all.slice(most - STEP_ROWS, most).findLastIndex((row) => row.matches(".step"));
    const cut = step < 0 ? most : most - STEP_ROWS + step;
    leave(all.slice(cut));
    offerNewer(seqOf(all[cut]) - 1);
  }

  // --- Loaded rows -------------------------------------------------------------------------------------------------

  function parse(html) {
    const parsed = document.createElement("template");
    parsed.innerHTML = html;
    return parsed.content;
  }

  // The page may have a card already that a loaded row is a part of.
  function parseNew(html) {
    const content = parse(html);
    for (const row of [...content.children]) if (row.dataset.seq && byId(row.id)) row.remove();
    return content;
  }

  // Only rows with a link of htmx: it would look for its attributes at every element.
  function prepare(row) {
    if (row.querySelector("[hx-get], [hx-post]")) htmx.process(row);
  }

  // Inserts rows in place of a link. Browsers keep the scroll position themselves, except at the very top.
  function insert(link, content, shorten) {
    const isAbove = link.id === "older";
    const fixed = isAbove ? link.nextElementSibling : link.previousElementSibling;
    const top = fixed?.getBoundingClientRect().top;
    const fresh = [...content.children];
    link.replaceWith(content);
    fresh.forEach(prepare);
    emit("agentops:rows-enter", { rows: fresh });
    shorten();
    if (fixed?.isConnected) scrollBy({ top: fixed.getBoundingClientRect().top - top, behavior: "instant" });
  }

  function replaceAll(html) {
    timeline.replaceChildren();
    timeline.append(parse(html));
    const fresh = [...timeline.children];
    fresh.forEach(prepare);
    emit("agentops:rows-enter", { rows: fresh });
  }

  timeline.addEventListener("htmx:beforeSwap", (event) => {
    const { target, xhr, serverResponse, isError } = event.detail;
    if (isError || !["older", "newer", "timeline"].includes(target.id)) return;
    event.detail.shouldSwap = false;
    const cursor = target.id === "older" ? null : xhr.getResponseHeader("Timeline-Cursor");
    if (cursor) emit("agentops:before-end");
    if (target === timeline) replaceAll(serverResponse);
    else if (target.id === "older") insert(target, parseNew(serverResponse), shortenBottom);
    else insert(target, parseNew(serverResponse), shortenTop);
    // The rows reach the end of the log: what comes next is appended again, from there on.
    if (cursor) emit("agentops:rows-reach-end", { cursor });
    emit("agentops:page");
  });

  window.timelineEdges = {
    offerNewer,
    // Whether a page that follows the newest rows has more than it keeps.
    isLong: () => rows().length > MOST_ROWS / 2,
    shortenFollowed: () => shortenTop(MOST_ROWS / 2),
    parse,
    prepare,
    isCut: () => byId("newer") !== null,
    isFull: () => rows().length >= MOST_ROWS,
    loadNewer: () => byId("newer")?.querySelector("a").click(),
    // Replaces all rows by the newest ones.
    loadNewest() {
      const { rowsUrl, show } = timeline.dataset;
      const url = `${rowsUrl}${show && show !== "all" ? `?show=${show}` : ""}`;
      return htmx.ajax("GET", url, { source: timeline, target: timeline, swap: "innerHTML" });
    },
  };
})();
