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
  let waits = false; // rows.js has stopped adding rows because the user is not following

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
    // Too many rows to add one by one: reload the page.
    if (waits) return location.assign(location.pathname);
    set(true);
    toBottom();
  }

  addEventListener("scroll", scrolled, { passive: true });
  // Scroll events fire one frame late; a row that arrives in between must not scroll the page back.
  timeline.addEventListener("htmx:sseBeforeMessage", look, { capture: true });

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

  // --- Initial position ------------------------------------------------------------------------------------------

  const query = new URLSearchParams(location.search);
  const elsewhere = location.hash || query.has("event") || query.has("before");
  if (elsewhere) document.querySelector(".is-target")?.scrollIntoView({ block: "center" });
  // A page whose timeline is only a part of it begins at its top.
  else if (!("stays" in timeline.dataset) && history.state?.following !== false) follow();
})();
