// The live stream of a page: connecting, reconnecting and the connection status.
//
// The SSE extension of htmx binds elements to a stream. This script replaces its connection (htmx.createEventSource),
// because after an HTTP error the extension requests the first URL again and so rows that are already on the page.
// The cursor is #timeline[data-last]: rows.js moves it when rows are on the page, and every connection starts there.
// The browser's own reconnect, which uses the last received id, is never used.
//
// A dead TCP connection is silent, and heartbeat comments are invisible to scripts. The stream is therefore reopened
// when the browser comes back online, when the page is shown again, and when nothing arrived for longer than the
// server's maximum stream lifetime.
"use strict";
(() => {
  const FIRST_RETRY_MS = 500;
  const LAST_RETRY_MS = 15_000;
  const HIDDEN_MS = 60_000; // A hidden page closes its connection: HTTP/1.1 allows only six per site.
  const SILENT_MS = 12 * 60_000; // The server ends each stream after about ten minutes.
  const RELOAD_MS = 10_000;
  const OPEN = 1;
  const CLOSED = 2;

  const streams = new Set();
  let isResting = false; // hidden for so long that its connections are closed, and stay so until it is shown
  const cursor = () => document.getElementById("timeline")?.dataset.last;

  // --- Connection status -----------------------------------------------------------------------------------------

  const WORDS = {
    connecting: "Connecting",
    live: "Live",
    reconnecting: "Reconnecting",
    offline: "Offline",
    ended: "Ended",
    revoked: "Access revoked",
  };

  function showState(state) {
    const place = document.getElementById("connection");
    if (!place || place.dataset.state === state) return;
    place.dataset.state = state;
    place.textContent = WORDS[state];
    if (state === "reconnecting" || state === "offline") place.append(...lastSeen());
    if (state === "revoked") place.append(" ", reloadLink());
  }

  function lastSeen() {
    const latest = [...document.querySelectorAll("#timeline > .row time")].pop();
    if (!latest) return [];
    const more = document.createElement("span");
    more.className = "connection-more";
    more.textContent = ` · showing events until ${latest.textContent}`;
    return [more];
  }

  function reloadLink() {
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Reload";
    return link;
  }

  // --- The stream --------------------------------------------------------------------------------------------------

  // Used by the extension as an EventSource. It outlives its connections, so listeners are bound once.
  class Stream extends EventTarget {
    constructor(url) {
      super();
      this.url = new URL(url, location.href);
      this.names = new Set();
      this.source = null;
      this.early = null;
      this.done = false;
      this.failures = 0;
      this.timer = 0;
      this.heard = Date.now();
      this.last = null; // the cursor of a page without a timeline
      this.addEventListener("end", () => this.finish("ended"));
      this.addEventListener("auth-revoked", () => this.finish("revoked"));
      this.addEventListener("stream-reset", () => {
        this.finish("connecting");
        reload();
      });
      this.open();
    }

    get readyState() {
      return this.done ? CLOSED : this.source ? this.source.readyState : 0;
    }

    addEventListener(name, listener, options) {
      super.addEventListener(name, listener, options);
      if (this.names.has(name)) return;
      this.names.add(name);
      if (this.source && !this.early) this.forward(this.source, name);
    }

    forward(source, name) {
      source.addEventListener(name, (event) => this.hear(name, event));
    }

    hear(name, event) {
      this.heard = Date.now();
      this.last = event.lastEventId || this.last;
      this.dispatchEvent(new MessageEvent(name, { data: event.data, lastEventId: event.lastEventId }));
    }

    address() {
      const from = cursor() ?? this.last;
      if (from) this.url.searchParams.set("afterSeq", from);
      return this.url;
    }

    // `isQuiet`: the connection is not lost, so its status does not change.
    open(isQuiet = false) {
      this.drop();
      if (this.done || isResting) return;
      const address = this.address();
      this.early = window.earlyStream?.(address.href) ?? null;
      const source = this.early?.source ?? new EventSource(address);
      this.source = source;
      this.heard = Date.now();
      source.onopen = () => this.opened();
      source.onerror = () => this.lost(source.readyState === CLOSED);
      if (this.failures === 0 && !isQuiet) showState("connecting");
      if (this.early) this.takeOver(this.early.flow);
      else for (const name of this.names) this.forward(source, name);
    }

    opened() {
      this.failures = 0;
      this.heard = Date.now();
      showState("live");
      if (this.onopen) this.onopen();
    }

    // In the next task, when the extension has bound all listeners.
    takeOver(flow) {
      const { source } = this;
      setTimeout(() => {
        if (this.source !== source) return;
        if (source.readyState === OPEN) this.opened();
        flow((name, event) => this.source === source && this.hear(name, event));
      });
    }

    // Drops the connection. A closed EventSource fires no more events.
    drop() {
      clearTimeout(this.timer);
      if (this.source) this.source.close();
      this.source = null;
    }

    // Ends this stream; htmx also calls it on `sse-close` and when the element is removed.
    close() {
      this.drop();
      this.done = true;
      streams.delete(this);
    }

    finish(state) {
      this.close();
      showState(state);
    }

    // `refused`: the response was not a stream. EventSource hides the status, so fetch it once.
    async lost(refused) {
      this.drop();
      this.failures += 1;
      showState(navigator.onLine ? "reconnecting" : "offline");
      const most = Math.min(FIRST_RETRY_MS * 2 ** (this.failures - 1), LAST_RETRY_MS);
      const verdict = refused ? await this.probe() : "again";
      if (this.done || this.source) return;
      if (verdict !== "again") this.finish(verdict);
      else this.timer = setTimeout(() => this.open(), most * (0.5 + Math.random() / 2)); // Random, to spread clients after a server restart.
    }

    async probe() {
      const controller = new AbortController();
      try {
        const response = await fetch(this.address(), {
          cache: "no-store",
          headers: { Accept: "text/event-stream" },
          signal: controller.signal,
        });
        if (response.status === 204) return "ended";
        return response.redirected || [401, 403, 404, 410].includes(response.status) ? "revoked" : "again";
      } catch {
        return "again";
      } finally {
        controller.abort();
      }
    }
  }

  htmx.createEventSource = (url) => {
    const stream = new Stream(url);
    streams.add(stream);
    return stream;
  };

  // --- Closing and reopening connections ---------------------------------------------------------------------------

  const each = (act) => streams.forEach((stream) => act(stream));
  const reopen = (stream) => {
    stream.failures = 0;
    stream.open();
  };
  let hiding = 0;

  // A page in the back/forward cache must hold no connection; it continues from its cursor when it is shown again.
  addEventListener("pagehide", () => each((stream) => stream.drop()));
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    watchHidden();
    each((stream) => stream.source || reopen(stream));
  });
  addEventListener("online", () => each(reopen));
  addEventListener("offline", () => streams.size && showState("offline"));
  function rest() {
    isResting = true;
    each((stream) => stream.drop());
  }
  function watchHidden() {
    clearTimeout(hiding);
    isResting = false;
    if (document.hidden) hiding = setTimeout(rest, HIDDEN_MS);
    else each((stream) => (stream.readyState !== OPEN || Date.now() - stream.heard > HIDDEN_MS) && reopen(stream));
  }
  document.addEventListener("visibilitychange", watchHidden);
  watchHidden(); // A page that was opened in the background is hidden from its beginning.
  setInterval(() => {
    if (!document.hidden) each((stream) => Date.now() - stream.heard > SILENT_MS && reopen(stream));
  }, 60_000);

  // --- Starting over -----------------------------------------------------------------------------------------------

  // The server cannot continue from the cursor, or a row could not be inserted: reload the page. At the earliest ten
  // seconds after it was loaded, to limit reload loops.
  function reload() {
    setTimeout(() => location.reload(), Math.max(0, RELOAD_MS - performance.now()));
  }
  document.addEventListener("agentops:reopen", () => each((stream) => stream.open(true)));
  document.addEventListener("agentops:start-over", () => {
    each((stream) => stream.finish("connecting"));
    reload();
  });
})();
