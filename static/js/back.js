// Makes the back link return to the list with the filters and the page that the user came from.
"use strict";
(() => {
  const link = document.querySelector("a[data-back]");
  if (!link || !document.referrer) return;
  const from = new URL(document.referrer);
  const to = new URL(link.href);
  if (from.origin === to.origin && from.pathname === to.pathname) link.href = from.href;
})();
