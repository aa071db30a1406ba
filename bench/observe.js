// Notes in a page under measurement what happened when, in milliseconds since the epoch. Put before every document.
(() => {
  "use strict";
  if (!location.protocol.startsWith("http")) return;
  const noted = {
    painted: null, // the first paint of anything
    longest: 0, // milliseconds of the longest task of the main thread over 50 ms
    shift: 0, // cumulative layout shift without input
  };
  window.bench = noted;

  new PerformanceObserver((list) => {
    const [first] = list.getEntriesByName("first-contentful-paint");
    if (!first) return;
    noted.painted = performance.timeOrigin + first.startTime;
    document.documentElement.dataset.benchPainted = "";
  }).observe({ type: "paint", buffered: true });

  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) noted.longest = Math.max(noted.longest, duration);
  }).observe({ type: "longtask" });
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) noted.shift += value;
  }).observe({ type: "layout-shift" });
})();
