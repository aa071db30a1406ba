// Asks for a live page's stream while the page is still being read. Its first rows are then on their way while the
// other scripts are parsed; live.js takes the connection over, with what has come on it by then.
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
  // A browser would connect again by itself; that is for live.js to do, from where the page is.
  source.onerror = leave;
  addEventListener("pagehide", leave);

  // The connection, once, if it is of this address and has not failed. `flow` begins with what has waited.
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
