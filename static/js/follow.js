// Following the newest rows: on while the reader is at the bottom, off as soon as they scroll up or begin to read.
// Then nothing moves; a pill counts what they have not seen and brings them back.
"use strict";
(() => {
  const NEAR_PX = 64;
  const ANNOUNCE_MS = 5000;

  const timeline = document.getElementById("timeline");
  if (!timeline) return;

  const root = document.documentElement;
  const atBottom = () => root.scrollHeight - innerHeight - scrollY <= NEAR_PX;
  const following = () => "following" in timeline.dataset;
  let lastY = scrollY;
  let unseen = 0;
  let waits = false; // rows.js has stopped adding rows while the reader is away

  // --- On and off --------------------------------------------------------------------------------------------------

  function set(on) {
    if (on === following()) return;
    timeline.toggleAttribute("data-following", on);
    // Who follows is at the end, wherever that is after a reload; the place the browser remembers is another one.
    history.scrollRestoration = on ? "manual" : "auto";
    // A reload or a way back through the history keeps the reader's choice.
    history.replaceState({ ...history.state, following: on }, "");
    if (on) seen();
  }

  function toBottom() {
    scrollTo({ top: root.scrollHeight, behavior: "instant" });
    lastY = scrollY;
  }

  // Only scrolling down to the end turns it on: who reads there may have turned it off on purpose.
  function scrolled() {
    if (atBottom()) set(!waits);
    else look();
    lastY = scrollY;
  }

  function look() {
    if (!atBottom() && scrollY < lastY - 1) set(false);
    lastY = scrollY;
  }

  function stay() {
    look();
    if (following()) toBottom();
  }

  function follow() {
    // Too much has been missed to be added row by row: the page opens anew at the newest one.
    if (waits) return location.assign(location.pathname);
    set(true);
    toBottom();
  }

  addEventListener("scroll", scrolled, { passive: true });
  // Scroll events come a frame late: a row that arrives in between must not pull the reader back.
  timeline.addEventListener("htmx:sseBeforeMessage", look, { capture: true });

  // Rows that grow, and rows whose real height comes out only when they are shown, must not end the following.
  new ResizeObserver(stay).observe(timeline);

  // Who opens a row, goes to one or marks text wants to read it where it is.
  timeline.addEventListener("click", (event) => event.target.closest("summary") && set(false));
  timeline.addEventListener("focusin", (event) => timeline.lastElementChild?.contains(event.target) || set(false));
  document.addEventListener("selectionchange", () => {
    const selection = getSelection();
    if (!selection.isCollapsed && timeline.contains(selection.anchorNode)) set(false);
  });

  // --- The pill, and what a screen reader hears --------------------------------------------------------------------

  const pill = document.getElementById("new-events") || document.body.appendChild(document.createElement("button"));
  pill.id = "new-events";
  pill.type = "button";
  pill.className = "pill";
  pill.hidden = true;
  pill.addEventListener("click", follow);

  function seen() {
    unseen = 0;
    pill.hidden = true;
  }

  function show() {
    pill.hidden = unseen === 0;
    pill.textContent = `↓ ${unseen} new`;
  }

  let added = 0;
  let announcing = 0;
  function announce(count) {
    added += count;
    announcing ||= setTimeout(() => {
      const place = document.getElementById("announce");
      if (place) place.textContent = `${added} new ${added === 1 ? "event" : "events"}`;
      added = announcing = 0;
    }, ANNOUNCE_MS);
  }

  timeline.addEventListener("agentops:rows", ({ detail }) => {
    if (detail.added) announce(detail.added);
    if (following()) return toBottom();
    unseen += detail.added;
    show();
  });
  timeline.addEventListener("agentops:rows-wait", ({ detail }) => {
    const placed = unseen;
    waits = true;
    pill.hidden = false;
    pill.textContent = `↓ ${placed + detail.newest - detail.last} new`;
  });
  document.addEventListener("agentops:follow", follow);

  // --- Where a page opens ------------------------------------------------------------------------------------------

  const asked = new URLSearchParams(location.search);
  const elsewhere = location.hash || asked.has("event") || asked.has("before");
  if (elsewhere) document.querySelector(".is-target")?.scrollIntoView({ block: "center" });
  else if (history.state?.following !== false) follow();
})();
