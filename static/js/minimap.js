// The minimap of a live run: loaded again when its steps, errors or status have changed, at most every ten seconds, and
// only while somebody can see it. Each batch of live rows brings the facts of the run, whose data-progress says so. After
// the last of them nothing is loaded any more.
"use strict";
(() => {
  const PAUSE_MS = 10_000;
  const box = document.querySelector(".go-to[data-loads]");
  if (!box) return;

  let shown = document.getElementById("facts")?.dataset.progress;
  let latest = shown;
  let loaded = Date.now();
  let timer = 0;

  function check() {
    // A column that is pointed at stays where it is.
    if (latest === shown || timer || document.hidden || box.matches(":has(.minimap:hover)")) return;
    const wait = loaded + PAUSE_MS - Date.now();
    if (wait > 0) {
      timer = setTimeout(() => {
        timer = 0;
        check();
      }, wait);
      return;
    }
    shown = latest;
    loaded = Date.now();
    htmx.trigger("#minimap", "agentops:progress");
  }

  document.addEventListener("agentops:replace", ({ detail: { fresh } }) => {
    if (fresh.id !== "facts") return;
    latest = fresh.dataset.progress;
    check();
  });
  document.addEventListener("visibilitychange", check);
  box.addEventListener("mouseleave", check);
})();
