// Notes in a page under measurement what happened when, in milliseconds since the epoch. Put before every document.
(() => {
  "use strict";
  if (!location.protocol.startsWith("http")) return;
  const CLICKED = "bench-clicked";
  const now = () => performance.timeOrigin + performance.now();
  const noted = {
    clicked: Number(sessionStorage.getItem(CLICKED)),
    rows: {}, // when each event's row came into the page, by its seq
    painted: null, // the first paint of anything
    stepInPage: null,
    stepSeen: null,
    words: null, // the first words of an answer that streams: in the page, and in the frame that shows them
    wordsSeen: null,
    longest: 0, // milliseconds of the longest task of the main thread over 50 ms
    shift: 0, // cumulative layout shift without input
  };
  window.bench = noted;

  // The document that was clicked in goes away: the time has to wait for the next one elsewhere.
  const click = (event) => {
    if (event.target.closest("button[type=submit]")) sessionStorage.setItem(CLICKED, String(now()));
  };
  addEventListener("click", click, true);

  // The next task after an animation frame runs when that frame has been painted.
  const afterFrame = (then) =>
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => then(now());
      channel.port2.postMessage(null);
    });

  // A frame can be due before anything is shown; the browser tells of the first paint a little later.
  let framed = null;
  const settle = () => {
    if (noted.painted === null) return;
    const marks = document.documentElement.dataset;
    marks.benchPainted = "";
    if (framed === null || noted.stepSeen !== null) return;
    noted.stepSeen = Math.max(framed, noted.painted);
    marks.benchSeen = "";
  };
  new PerformanceObserver((list) => {
    const [first] = list.getEntriesByName("first-contentful-paint");
    if (first) noted.painted = performance.timeOrigin + first.startTime;
    settle();
  }).observe({ type: "paint", buffered: true });

  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) noted.longest = Math.max(noted.longest, duration);
  }).observe({ type: "longtask" });
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) noted.shift += value;
  }).observe({ type: "layout-shift" });

  const hear = (node, at) => {
    const streams = noted.words === null && node.parentElement?.closest("#timeline [id^=turn-][id$=-text]");
    if (!streams || !node.textContent.trim()) return;
    noted.words = at;
    afterFrame((at) => {
      noted.wordsSeen = at;
      document.documentElement.dataset.benchWords = "";
    });
  };

  const look = (records) => {
    const at = now();
    for (const record of records) {
      for (const node of record.addedNodes) {
        hear(node, at);
        if (node instanceof HTMLElement && node.dataset.seq) noted.rows[node.dataset.seq] ??= at;
      }
    }
    if (noted.stepInPage === null && document.querySelector("#timeline > .step")) {
      noted.stepInPage = at;
      afterFrame((at) => {
        framed = at;
        settle();
      });
    }
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true });
})();
