// The live stream of a page: how it is opened, when it is opened again, and what the reader is told about it.
//
// The SSE extension of htmx binds elements to a stream; the connection itself is ours (htmx.createEventSource), because
// after an HTTP error the extension asks for the first URL again and so for rows that are on the page already.
// The cursor is #timeline[data-last]: it moves when rows are on the page (rows.js), not when bytes arrive, and every
// connection starts there. So the browser's own reconnect, which trusts the last id it saw, is never used.
//
// A dead TCP connection is silent, and heartbeat comments cannot be seen here. What we go by instead: the browser came
// back online, the page was hidden, or nothing came for longer than the server lets any stream live.
"use strict";
(() => {
  const FIRST_RETRY_MS = 500;
  const LAST_RETRY_MS = 15_000;
  const HIDDEN_MS = 60_000; // A hidden page gives its connection back: HTTP/1.1 has only six of them per site.
  const SILENT_MS = 12 * 60_000; // The server ends each stream after about ten minutes.
  const RELOAD_MS = 10_000;
  const OPEN = 1;
  const CLOSED = 2;

  const streams = new Set();
  const cursor = () => document.getElementById("timeline")?.dataset.last;

  // --- What the reader is told -------------------------------------------------------------------------------------

  const WORDS = {
    connecting: "Connecting",
    live: "Live",
    reconnecting: "Reconnecting",
    offline: "Offline",
    ended: "Ended",
    revoked: "No longer allowed",
  };

  function tell(state) {
    const place = document.getElementById("connection");
    if (!place || place.dataset.state === state) return;
    place.dataset.state = state;
    place.textContent = WORDS[state];
    if (state === "reconnecting" || state === "offline") place.append(...lastSeen());
    if (state === "revoked") place.append(" ", reloadLink());
  }

  function lastSeen() {
    const shown = [...document.querySelectorAll("#timeline > .row time")].pop();
    if (!shown) return [];
    const more = document.createElement("span");
    more.className = "connection-more";
    more.textContent = ` · showing events to ${shown.textContent}`;
    return [more];
  }

  function reloadLink() {
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Reload";
    return link;
  }

  // --- The stream --------------------------------------------------------------------------------------------------

  // What the extension takes for an EventSource. It outlives its connections, so listeners are bound once.
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
      this.dispatchEvent(new MessageEvent(name, { data: event.data, lastEventId: event.lastEventId }));
    }

    address() {
      const from = cursor();
      if (from) this.url.searchParams.set("afterSeq", from);
      return this.url;
    }

    open() {
      this.drop();
      if (this.done) return;
      const address = this.address();
      this.early = window.earlyStream?.(address.href) ?? null;
      const source = this.early?.source ?? new EventSource(address);
      this.source = source;
      this.heard = Date.now();
      source.onopen = () => this.opened();
      source.onerror = () => this.lost(source.readyState === CLOSED);
      if (this.failures === 0) tell("connecting");
      if (this.early) this.takeOver(this.early.flow);
      else for (const name of this.names) this.forward(source, name);
    }

    opened() {
      this.failures = 0;
      this.heard = Date.now();
      tell("live");
      if (this.onopen) this.onopen();
    }

    // A task later: by then the extension has bound everything that listens.
    takeOver(flow) {
      const { source } = this;
      setTimeout(() => {
        if (this.source !== source) return;
        if (source.readyState === OPEN) this.opened();
        flow((name, event) => this.source === source && this.hear(name, event));
      });
    }

    // Forgets the connection. An EventSource that is closed reports nothing more.
    drop() {
      clearTimeout(this.timer);
      if (this.source) this.source.close();
      this.source = null;
    }

    // The end of this stream's life; htmx calls it too, on `sse-close` and when the element is gone.
    close() {
      this.drop();
      this.done = true;
      streams.delete(this);
    }

    finish(state) {
      this.close();
      tell(state);
    }

    // `refused`: the server answered, but not with a stream. EventSource hides the answer, so we ask once ourselves.
    async lost(refused) {
      this.drop();
      this.failures += 1;
      tell(navigator.onLine ? "reconnecting" : "offline");
      const most = Math.min(FIRST_RETRY_MS * 2 ** (this.failures - 1), LAST_RETRY_MS);
      const verdict = refused ? await this.ask() : "again";
      if (this.done || this.source) return;
      if (verdict !== "again") this.finish(verdict);
      else this.timer = setTimeout(() => this.open(), most * (0.5 + Math.random() / 2)); // Spread after a restart.
    }

    async ask() {
      const asked = new AbortController();
      try {
        const answer = await fetch(this.address(), {
          cache: "no-store",
          headers: { Accept: "text/event-stream" },
          signal: asked.signal,
        });
        if (answer.status === 204) return "ended";
        return answer.redirected || [401, 403, 404, 410].includes(answer.status) ? "revoked" : "again";
      } catch {
        return "again";
      } finally {
        asked.abort();
      }
    }
  }

  htmx.createEventSource = (url) => {
    const stream = new Stream(url);
    streams.add(stream);
    return stream;
  };

  // --- When connections are given back and taken up again ----------------------------------------------------------

  const each = (act) => streams.forEach((stream) => act(stream));
  const reopen = (stream) => {
    stream.failures = 0;
    stream.open();
  };
  let hiding = 0;

  // A page in the back/forward cache must hold no connection, and goes on from its cursor when it is shown again.
  addEventListener("pagehide", () => each((stream) => stream.drop()));
  addEventListener("pageshow", (event) => event.persisted && each(reopen));
  addEventListener("online", () => each(reopen));
  addEventListener("offline", () => streams.size && tell("offline"));
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => each((stream) => stream.drop()), HIDDEN_MS);
    else each((stream) => (stream.readyState !== OPEN || Date.now() - stream.heard > HIDDEN_MS) && reopen(stream));
  });
  setInterval(() => {
    if (!document.hidden) each((stream) => Date.now() - stream.heard > SILENT_MS && reopen(stream));
  }, 60_000);

  // --- Starting over -----------------------------------------------------------------------------------------------

  // The server cannot go on from our cursor, or a row could not be placed: the page itself is the way back to the
  // truth. Never sooner than ten seconds after it was loaded, whatever the server says.
  function reload() {
    setTimeout(() => location.reload(), Math.max(0, RELOAD_MS - performance.now()));
  }
  document.addEventListener("agentops:start-over", () => {
    each((stream) => stream.finish("connecting"));
    reload();
  });
})();
