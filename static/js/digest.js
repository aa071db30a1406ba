// The digest: while more rows arrive than anybody can read, one row counts them instead.
//
// It is the link to the newer rows (edges.js), so a click on it loads the first of them. When fewer rows arrive, the
// newest ones are shown if the user follows them; otherwise it becomes an ordinary link.
"use strict";
(() => {
  const FAST = 20; // rows per second
  const CALM = 10;
  const SLICE_MS = 500;
  const SLICES = 4;
  const REACHABLE = 80; // rows up to which the gap is filled instead of all rows being replaced

  const timeline = document.getElementById("timeline");
  if (!timeline) return;

  const edges = window.timelineEdges;
  const following = () => "following" in timeline.dataset;
  let slices = []; // [start, rows] of the last two seconds
  let timer = 0;
  let missed = 0;
  let row = null;
  let latest = "";

  function perSecond() {
    const since = performance.now() - SLICE_MS * SLICES;
    slices = slices.filter(([start]) => start > since);
    return slices.reduce((sum, [, count]) => sum + count, 0) / ((SLICE_MS * SLICES) / 1000);
  }

  // Several slices: a single burst, such as one batch of a runner, is shown row by row.
  function count(added, at) {
    if (!slices.length || at - slices.at(-1)[0] > SLICE_MS) slices.push([at, 0]);
    slices.at(-1)[1] += added;
    return perSecond() > FAST && slices.length >= SLICES - 1;
  }

  function begin(seq) {
    missed = 0;
    row = edges.offerNewer(seq, true);
    row.classList.add("digest");
    const link = row.querySelector("a");
    link.textContent = "Show them";
    const text = document.createElement("span");
    const detail = document.createElement("span");
    detail.className = "digest-detail";
    row.prepend(text, " ", detail, " ");
    show();
    timer = setInterval(turn, SLICE_MS);
  }

  function show() {
    const [text, detail] = row.children;
    text.textContent = `${missed.toLocaleString("en")} new ${missed === 1 ? "event" : "events"}`;
    detail.textContent = `${Math.round(perSecond())} rows per second${latest ? ` · ${latest}` : ""}`;
  }

  function turn() {
    // Its rows were loaded: whatever comes next begins another one.
    if (!row.isConnected) return end();
    show();
    if (perSecond() > CALM) return;
    const link = row.querySelector("a");
    const seq = new URL(link.href).searchParams.get("after");
    end();
    if (!following()) edges.offerNewer(seq);
    else if (missed > REACHABLE) edges.loadNewest();
    else edges.loadNewer();
  }

  function end() {
    clearInterval(timer);
    row = null;
  }

  // The rows are numbered by their first event, which for a digest is good enough a name.
  function nameOf(piece) {
    const step = piece.querySelector(".step-link")?.textContent.trim();
    const title = piece.querySelector("h3, .card-title, .row-text")?.textContent.trim().slice(0, 80);
    return [step, title].filter(Boolean).join(" · ");
  }

  window.timelineDigest = {
    isOn: () => row !== null && row.isConnected,
    // Counts rows that came at a time and belong after event `seq`. Returns whether the digest takes their place.
    takes(pieces, seq, at) {
      if (!count(pieces.length, at) || edges.isCut()) return false;
      begin(seq);
      return true;
    },
    // Counts events whose rows are not shown.
    note(events, pieces) {
      const isFirst = missed === 0;
      missed += events;
      if (pieces.length) latest = nameOf(pieces.at(-1));
      if (isFirst && row?.isConnected) show();
    },
  };
})();
