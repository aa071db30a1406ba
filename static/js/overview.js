// Holds back updates of [data-calm] while the pointer moves in it or a field in it has the focus, so that no row moves
// away under the cursor. The newest state is loaded as soon as the reader is done.
"use strict";
(() => {
  const QUIET_MS = 3000; // a pointer that rests for longer is not about to click
  const place = document.querySelector("[data-calm]");
  if (!place) return;

  let movedAt = 0;
  let isHeld = false;
  for (const name of ["pointermove", "pointerdown", "keydown"]) {
    place.addEventListener(name, () => (movedAt = Date.now()), { passive: true });
  }
  place.addEventListener("pointerleave", () => (movedAt = 0));

  const isTyping = () => place.contains(document.activeElement) && document.activeElement.matches("textarea, input, select");
  const isBusy = () => Date.now() - movedAt < QUIET_MS || isTyping();

  place.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target !== place || !isBusy()) return;
    event.detail.shouldSwap = false;
    isHeld = true;
  });
  setInterval(() => {
    if (!isHeld || isBusy()) return;
    isHeld = false;
    place.dispatchEvent(new CustomEvent("agentops:refresh"));
  }, 500);
})();
