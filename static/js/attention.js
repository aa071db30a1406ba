// Shows how much needs a person (#bell[data-count]) in the page's title, and in notifications of the browser if the
// user has switched them on with a [data-notify] button.
"use strict";
(() => {
  const KEY = "agentops.notify";
  const TITLE = /^\(\d+\+?\) /;
  const bell = () => document.getElementById("bell");
  const count = () => Number(bell()?.dataset.count || 0);

  function show() {
    const label = bell()?.querySelector(".bell-count")?.textContent;
    const title = document.title.replace(TITLE, "");
    document.title = label ? `(${label}) ${title}` : title;
  }

  // --- Notifications ---------------------------------------------------------------------------------------------

  const isPossible = "Notification" in window && window.isSecureContext;
  const isOn = () => isPossible && Notification.permission === "granted" && read() === "1";

  function read() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  }

  function write(value) {
    try {
      localStorage.setItem(KEY, value);
    } catch {
      // Storage is disabled: nothing is announced.
    }
  }

  function label() {
    for (const button of document.querySelectorAll("[data-notify]")) {
      button.hidden = !isPossible || Notification.permission === "denied";
      button.textContent = isOn() ? "Stop notifying me here" : "Notify me in this browser";
      button.setAttribute("aria-pressed", String(isOn()));
    }
  }

  document.addEventListener("click", async ({ target }) => {
    if (!target.closest("[data-notify]")) return;
    const wanted = !isOn() && (await Notification.requestPermission()) === "granted";
    write(wanted ? "1" : "0");
    label();
  });

  // Only while the page is hidden: who looks at it sees the bell. Tabs of one project share a tag: one notification.
  function announce(before) {
    if (!isOn() || !document.hidden || count() <= before) return;
    const { project } = bell().dataset;
    try {
      const note = new Notification(`${project}: ${count()} need${count() === 1 ? "s" : ""} you`, { tag: `agentops ${project}` });
      note.onclick = () => {
        window.focus();
        bell().click();
      };
    } catch {
      // Some mobile browsers allow notifications only from service workers.
    }
  }

  let last = count();
  new MutationObserver(() => {
    if (count() === last) return;
    announce(last);
    last = count();
    show();
  }).observe(document.querySelector(".topbar-end") || document.body, { childList: true, subtree: true });

  show();
  label();
})();
