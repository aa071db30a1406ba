// The player of a replay: play, pause, speed, scrub, step, keyboard. It only asks for what the page shows at an event
// (templates/runs/run/_replay_frame.html); nothing is executed. Each frame says when its next events were stored.
"use strict";
(() => {
  const TICK_MS = 50;
  const SAVE_MS = 400; // browsers refuse a page that changes its address too often

  const replay = document.getElementById("replay");
  if (!replay) return;
  const frame = document.getElementById("replay-frame");
  const play = document.getElementById("replay-play");
  const speed = document.getElementById("replay-speed");
  const scrub = document.getElementById("replay-scrub");
  const announcer = document.getElementById("replay-announce");
  for (const element of replay.querySelectorAll("[hidden]")) element.hidden = false;

  const moment = () => frame.querySelector(".replay-moment");
  const seq = () => Number(moment().dataset.seq);
  const last = () => Number(moment().dataset.last);
  const playing = () => timer !== 0;

  // --- Frames ------------------------------------------------------------------------------------------------------

  let goal = 0; // the newest event that was asked for, while frames are loading
  let loading = null;
  let saving = 0;

  function seek(to) {
    goal = Math.min(Math.max(to, 1), last());
    loading ||= load().finally(() => {
      loading = null;
      shown();
    });
    return loading;
  }

  // One request at a time; what was asked for in between is skipped.
  async function load() {
    while (seq() !== goal) {
      const to = goal;
      const url = `${replay.dataset.frameUrl}?seq=${to}`;
      await htmx.ajax("GET", url, { target: frame, swap: "innerHTML" }).catch(() => {});
      // No frame came: problems.js says why.
      if (seq() !== to) return pause();
    }
  }

  const target = () => (loading ? goal : seq());

  function shown() {
    scrub.max = last();
    if (document.activeElement !== scrub || playing()) scrub.value = seq();
    if (!playing()) announcer.textContent = `Event ${seq()} of ${last()}`;
    clearTimeout(saving);
    saving = setTimeout(() => history.replaceState(history.state, "", `?seq=${seq()}`), SAVE_MS);
  }

  // --- Playing -----------------------------------------------------------------------------------------------------

  let timer = 0;
  let passed = 0; // milliseconds of the recording since the shown event
  let ticked = 0;

  function start() {
    if (seq() >= last()) return seek(1).then(() => seq() < last() && start());
    passed = 0;
    ticked = performance.now();
    timer = setInterval(tick, TICK_MS);
    play.textContent = "Pause";
  }

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }

  function tick() {
    const now = performance.now();
    passed += (now - ticked) * Number(speed.value);
    ticked = now;
    if (loading) return;
    const { ahead } = moment().dataset;
    const times = ahead ? ahead.split(" ").map(Number) : [];
    const due = times.filter((time) => time <= passed).length;
    if (seq() + due >= last() || !times.length) finish();
    else if (due) {
      // What has passed since that event; a slow server must not let it pile up.
      passed = Math.min(passed - times[due - 1], 1000);
      seek(seq() + due);
    }
  }

  function finish() {
    pause();
    seek(last());
  }

  const toggle = () => (playing() ? pause() : start());

  function jump(to) {
    pause();
    return seek(to);
  }

  // --- Controls ----------------------------------------------------------------------------------------------------

  play.addEventListener("click", toggle);
  scrub.addEventListener("input", () => jump(Number(scrub.value)));

  frame.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-seek]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const index = [...frame.querySelectorAll("a[data-seek]")].indexOf(link);
    // The frame is replaced: the focus stays on the link that was used.
    jump(Number(link.dataset.seek)).then(() => frame.querySelectorAll("a[data-seek]")[index]?.focus());
  });

  frame.addEventListener("submit", (event) => {
    const to = Number(new FormData(event.target).get("seq"));
    if (!to) return;
    event.preventDefault();
    jump(to);
  });

  // --- Keys --------------------------------------------------------------------------------------------------------

  const KEYS = {
    " ": toggle,
    ArrowLeft: () => jump(target() - 1),
    ArrowRight: () => jump(target() + 1),
    Home: () => jump(1),
    End: () => jump(last()),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !KEYS[event.key]) return;
    const from = event.target;
    if (document.querySelector("dialog[open]")) return;
    // The range input moves by itself; Space activates a focused button or link.
    if (from === scrub ? event.key !== " " : from.closest("input, textarea, select, [contenteditable]")) return;
    if (event.key === " " && from.closest("button, summary")) return;
    event.preventDefault();
    KEYS[event.key]();
  });
})();
