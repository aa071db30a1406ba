// Follows the newest rows: on while the page is scrolled to the bottom, off when the user scrolls up or starts reading.
// While it is off, the page does not move; a pill counts the unseen rows and scrolls to the bottom when clicked.
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
  let settling = 0; // frames until which the page is scrolled by rows that were added or removed, not by the user
  const edges = window.timelineEdges;
  const isDigest = () => window.timelineDigest.isOn();

  // --- On and off --------------------------------------------------------------------------------------------------

  function set(on) {
    if (on === following()) return;
    timeline.toggleAttribute("data-following", on);
    // While following, the position after a reload is the bottom, not the one that the browser restores.
    history.scrollRestoration = on ? "manual" : "auto";
    // Keep the user's choice across reloads and back navigation.
    history.replaceState({ ...history.state, following: on }, "");
    if (on) seen();
  }

  function toBottom() {
    scrollTo({ top: root.scrollHeight, behavior: "instant" });
    lastY = scrollY;
  }

  // Turned on only by scrolling down to the bottom: at the bottom the user may have turned it off on purpose.
  function scrolled() {
    // Below the last row there may be others that are not loaded yet.
    if (!atBottom()) look();
    else if (!edges.isCut() || isDigest()) set(true);
    lastY = scrollY;
  }

  function look() {
    if (!atBottom() && scrollY < lastY - 1 && !settling) set(false);
    lastY = scrollY;
  }

  function stay() {
    look();
    if (following()) toBottom();
  }

  function follow() {
    set(true);
    if (edges.isCut() && !isDigest()) edges.loadNewest();
    toBottom();
  }

  // Browsers keep the visible rows in place, and report it as scrolling one frame later.
  function settle() {
    settling += 1;
    requestAnimationFrame(() => requestAnimationFrame(() => (settling -= 1)));
  }
  for (const name of ["agentops:rows-leave", "agentops:page"]) timeline.addEventListener(name, settle);

  addEventListener("scroll", scrolled, { passive: true });
  // Scroll events fire one frame late; a row that arrives in between must not scroll the page back.
  timeline.addEventListener("agentops:before-rows", look);

  // Rows that grow, and rows that are laid out late, must not turn it off.
  new ResizeObserver(stay).observe(timeline);

  // Expanding a row, focusing one or selecting text turns it off.
  timeline.addEventListener("click", (event) => event.target.closest("summary") && set(false));
  timeline.addEventListener("focusin", (event) => timeline.lastElementChild?.contains(event.target) || set(false));
  document.addEventListener("selectionchange", () => {
    const selection = getSelection();
    if (!selection.isCollapsed && timeline.contains(selection.anchorNode)) set(false);
  });

  // --- The pill and the screen reader announcements --------------------------------------------------------------------

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
      const announcer = document.getElementById("announce");
      if (announcer) announcer.textContent = `${added} new ${added === 1 ? "event" : "events"}`;
      added = announcing = 0;
    }, ANNOUNCE_MS);
  }

  // The ResizeObserver scrolls to the bottom, after the layout that the new rows need anyway.
  timeline.addEventListener("agentops:rows", ({ detail }) => {
    const count = edges.isCut() ? detail.events : detail.added;
    if (count) announce(count);
    if (detail.added) settle();
    if (following()) return;
    unseen += count;
    show();
  });
  // All rows were replaced by the newest ones.
  timeline.addEventListener("agentops:rows-reach-end", () => following() && toBottom());
  document.addEventListener("agentops:follow", follow);

  // --- Initial position ------------------------------------------------------------------------------------------

  const query = new URLSearchParams(location.search);
  const elsewhere = location.hash || ["event", "step", "before", "after"].some((name) => query.has(name));
  if (elsewhere) document.querySelector(".is-target")?.scrollIntoView({ block: "center" });
  // A page whose timeline is only a part of it begins at its top.
  else if (!("stays" in timeline.dataset) && history.state?.following !== false) follow();
})();
