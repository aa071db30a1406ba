// Opens the stream of a live page while the page is still being parsed, so that the first rows arrive earlier.
// live.js takes over the connection and the messages received until then.
"use strict";
(() => {
  const NAMES = ["rows", "status", "end", "auth-revoked", "stream-reset"];
  const url = new URL(document.currentScript.dataset.stream, location.href).href;
  const source = new EventSource(url);
  const waiting = [];
  let good = true;
  let pass = (name, event) => waiting.push([name, event]);
  for (const name of NAMES) source.addEventListener(name, (event) => pass(name, event));

  const leave = () => {
    good = false;
    source.close();
  };
  // Prevent the browser's automatic reconnect: live.js reconnects from the page's cursor.
  source.onerror = leave;
  addEventListener("pagehide", leave);

  // Returns the connection once, if it has this address and has not failed. `flow` first delivers the queued messages.
  window.earlyStream = (address) => {
    removeEventListener("pagehide", leave);
    window.earlyStream = () => null;
    if (!good || address !== url) {
      leave();
      return null;
    }
    source.onerror = null;
    const flow = (take) => {
      waiting.forEach(([name, event]) => take(name, event));
      pass = take;
    };
    return { source, flow };
  };
})();
