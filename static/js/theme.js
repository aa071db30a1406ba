// The theme of the page: system, light or dark, stored in localStorage.
// Runs before the first paint, so that the page does not flash; also sets data-js, which shows that scripts run.
"use strict";
(() => {
  const KEY = "agentops.theme";
  const THEMES = ["system", "light", "dark"];
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const root = document.documentElement;
  let theme = read();

  // Storage may be disabled in the browser: then the choice lasts until the page is left.
  function read() {
    try {
      const kept = localStorage.getItem(KEY);
      return THEMES.includes(kept) ? kept : "system";
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
      button.setAttribute("aria-label", `Theme: ${theme}`);
      button.title = `Theme: ${theme}`;
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
  // The theme was changed in another tab.
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    theme = read();
    show();
  });
})();
