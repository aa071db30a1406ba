// The colours of the page: the system's, or the reader's own choice, kept in localStorage.
// Runs before the first paint, so that a page never flashes in the other colours; it also marks that scripts run.
"use strict";
(() => {
  const KEY = "agentops.theme";
  const WORDS = { system: "as the system", light: "light", dark: "dark" };
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const root = document.documentElement;
  let theme = read();

  // Storage may be switched off in the browser: then a choice lasts as long as the page.
  function read() {
    try {
      const kept = localStorage.getItem(KEY);
      return kept in WORDS ? kept : "system";
    } catch {
      return "system";
    }
  }

  function keep() {
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // See read().
    }
  }

  function show() {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.setAttribute("aria-label", `Colours: ${WORDS[theme]}`);
      button.title = `Colours: ${WORDS[theme]}`;
    }
  }

  root.dataset.js = "";
  show();
  document.addEventListener("DOMContentLoaded", show);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    theme = NEXT[theme];
    keep();
    show();
  });
  // Another tab of the same reader has chosen.
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    theme = read();
    show();
  });
})();
