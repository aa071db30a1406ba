// The way back to a list leads to the list as it was left, with its filters and its page, not to the plain one.
"use strict";
(() => {
  const link = document.querySelector("a[data-back]");
  if (!link || !document.referrer) return;
  const from = new URL(document.referrer);
  const to = new URL(link.href);
  if (from.origin === to.origin && from.pathname === to.pathname) link.href = from.href;
})();
