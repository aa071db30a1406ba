// Keyboard shortcuts: moving through rows, expanding them, and the help dialog (templates/_keys.html).
"use strict";
(() => {
  const ROWS = "#timeline > .row:not(.older), [data-rows] > tr, .table tbody > tr, .results > li, .conversation > li, .failures > li";
  const TYPING = "input, textarea, select, [contenteditable]";
  const CHORD_MS = 1500;

  const sheet = document.getElementById("keys");
  const rows = () => [...document.querySelectorAll(ROWS)].filter((row) => row.checkVisibility?.() ?? true);
  const current = () => document.activeElement?.closest(ROWS);

  // --- Moving ------------------------------------------------------------------------------------------------------

  function go(row) {
    if (!row) return;
    if (!row.hasAttribute("tabindex")) row.tabIndex = -1;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  const ANY = () => true;

  // Without a current row, start at the first visible one.
  function step(by, matches = ANY) {
    const all = rows();
    const at = all.indexOf(current());
    const from = at >= 0 ? at + by : Math.max(0, all.findIndex((row) => row.getBoundingClientRect().bottom > 0));
    for (let index = from; index >= 0 && index < all.length; index += by) {
      if (!matches(all[index])) continue;
      go(all[index]);
      return true;
    }
    if (at >= 0 && matches === ANY) stepBeyond(by);
    return false;
  }

  // At an end of a long timeline, load the next rows.
  function stepBeyond(by) {
    const link = document.querySelector(by > 0 ? "#newer a" : "#older a");
    if (!link) return;
    document.addEventListener("agentops:page", () => step(by), { once: true });
    link.click();
  }

  // The next error on the page, or else the next one of the run after the last row here; the server starts over at its
  // first error.
  function nextError() {
    if (step(1, (row) => row.matches(".is-error") && row !== current())) return;
    const link = document.querySelector("[data-next-error]");
    const last = [...document.querySelectorAll("#timeline > .row[data-seq]")].pop();
    if (link) location.assign(`${link.dataset.nextError}&after=${last ? Number(last.dataset.seq) : 0}`);
  }

  // --- Opening -----------------------------------------------------------------------------------------------------

  function setOpen(details, open) {
    details.open = open;
    details.dataset.touched = "";
  }

  function toggle() {
    const row = current();
    const details = row?.querySelector("details:not(.menu)");
    if (details) setOpen(details, !details.open);
    else row?.querySelector("a[href]")?.click();
  }

  // Keep the current row in place while the rows around it grow or shrink.
  function toggleAll(open) {
    const anchor = current() || rows().find((row) => row.getBoundingClientRect().bottom > innerHeight / 3);
    const before = anchor?.getBoundingClientRect().top;
    document.querySelectorAll("#timeline details").forEach((details) => setOpen(details, open));
    if (anchor) scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: "instant" });
  }

  // --- Keys --------------------------------------------------------------------------------------------------------

  const emit = (name) => document.dispatchEvent(new CustomEvent(name));
  const visit = (where) => document.querySelector(`[data-go="${where}"]`)?.click();
  const KEYS = {
    j: () => step(1),
    k: () => step(-1),
    x: nextError,
    e: () => toggleAll(true),
    w: () => toggleAll(false),
    f: () => emit("agentops:follow"),
    t: () => emit("agentops:toggle-utc"),
    "/": () => (document.querySelector("[data-filter]") || document.querySelector(".tabs a"))?.focus(),
    "?": () => sheet?.showModal(),
  };
  const PLACES = { h: "home", i: "inbox", r: "runs", n: "start", s: "search" };
  const CHORDS = { g: Object.fromEntries(Object.entries(PLACES).map(([key, where]) => [key, () => visit(where)])) };

  let chord = null;
  let chordEnds = 0;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest(TYPING) || document.querySelector("dialog[open]")) return;
    const { key } = event;
    const act = chord && Date.now() < chordEnds ? chord[key] : KEYS[key];
    chord = CHORDS[key] || null;
    chordEnds = Date.now() + CHORD_MS;
    // Enter activates a focused link or button; handle it only on a row itself.
    if (key === "Enter" && event.target === current()) toggle();
    else if (act) act();
    else return;
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-keys-open]")) sheet?.showModal();
    // A click outside of an open dialog closes it, like Escape.
    else if (event.target === sheet) sheet.close();
    closeMenus(event.target);
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && closeMenus(null));

  // Menus are <details> and open without JavaScript; a click elsewhere or Escape closes them.
  function closeMenus(target) {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      // On a narrow screen, the actions of a run are shown beside the menu that opens them.
      const beside = menu.matches(".actions-toggle") ? menu.nextElementSibling : null;
      if (menu.contains(target) || beside?.contains(target)) continue;
      menu.open = false;
      if (!target && menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    }
  }
})();
