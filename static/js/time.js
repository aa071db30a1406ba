// Formats times in local time or UTC, relative times and running durations.
//   <time datetime="…" data-time>12:03:07</time>         same format, in the selected time zone; title: date, zone, ISO 8601
//   <time datetime="…" data-time="ago">…</time>          "3 min ago", updated while the page is visible
//   <span class="tick" data-since="…">12 s</span>        counts up
//   <span class="tick" data-until="…">in 12 s</span>     counts down
"use strict";
(() => {
  const KEY = "agentops.utc";
  const ALL = "time[data-time]";
  const TICKS = ".tick[data-since], .tick[data-until]";
  let utc = read();
  // The browser's clock may be wrong, so compare it with the server's time in the page.
  const serverNow = Date.parse(document.body.dataset.now);
  const arrived = performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.responseStart ?? 0);
  const ahead = Number.isNaN(serverNow) ? 0 : arrived - serverNow;
  const now = () => Date.now() - ahead;

  function read() {
    try {
      return localStorage.getItem(KEY) === "1";
    } catch {
      return false;
    }
  }

  // --- Formats -----------------------------------------------------------------------------------------------------

  const two = (number) => String(number).padStart(2, "0");

  function clock(date) {
    return utc
      ? `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`
      : `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  }

  function day(date) {
    return utc
      ? `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`
      : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  }

  function ago(date) {
    const seconds = Math.max(0, Math.round((now() - date) / 1000));
    if (seconds < 5) return "just now";
    if (seconds < 60) return `${seconds} s ago`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
    return `${Math.floor(seconds / 86_400)} d ago`;
  }

  // Same format as the server's (timeline/templatetags).
  function lasting(seconds) {
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
    if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor(seconds / 60) % 60)} min`;
    return `${Math.floor(seconds / 86_400)} d ${two(Math.floor(seconds / 3600) % 24)} h`;
  }

  // --- Elements ----------------------------------------------------------------------------------------------------

  function showTime(element) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) return;
    // The server's text decides the format: with or without the date.
    element.dataset.shape ||= element.dataset.time || (/\d{4}-\d\d-\d\d/.test(element.textContent) ? "day" : "clock");
    const { shape } = element.dataset;
    element.textContent = shape === "ago" ? ago(date) : shape === "day" ? `${day(date)} ${clock(date)}` : clock(date);
    element.title = `${day(date)} ${clock(date)} ${utc ? "UTC" : "local time"} · ${ago(date)}\n${date.toISOString()}`;
  }

  function showTick(element) {
    const until = Date.parse(element.dataset.until);
    const left = Math.ceil((until - now()) / 1000);
    if (!Number.isNaN(until)) element.textContent = left > 0 ? `in ${lasting(left)}` : "now";
    const since = Date.parse(element.dataset.since);
    if (!Number.isNaN(since)) element.textContent = lasting(Math.max(0, Math.floor((now() - since) / 1000)));
  }

  function showAll(root) {
    root.querySelectorAll(ALL).forEach(showTime);
    root.querySelectorAll(TICKS).forEach(showTick);
  }

  // Format new rows before they are painted.
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes)
      for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) showAll(around(node));
  }).observe(document.body, { childList: true, subtree: true });

  // querySelectorAll does not match the element itself.
  const around = (node) => (node.matches(`${ALL}, ${TICKS}`) && node.parentElement) || node;

  // --- One timer, only while visible ----------------------------------------------------------------------------------

  let beat = 0;
  function turn() {
    document.querySelectorAll(TICKS).forEach(showTick);
    // Relative times are updated every ten seconds.
    beat = (beat + 1) % 10;
    if (beat === 0) document.querySelectorAll("time[data-time='ago']").forEach(showTime);
  }
  let timer = 0;
  function run() {
    clearInterval(timer);
    if (document.hidden) return;
    turn();
    timer = setInterval(turn, 1000);
  }
  document.addEventListener("visibilitychange", run);

  document.addEventListener("agentops:toggle-utc", () => {
    utc = !utc;
    try {
      localStorage.setItem(KEY, utc ? "1" : "0");
    } catch {
      // Storage is disabled: the choice lasts until the page is left.
    }
    showAll(document);
    const place = document.getElementById("announce");
    if (place) place.textContent = utc ? "Showing times in UTC" : "Showing times in local time";
  });

  showAll(document);
  run();
})();
