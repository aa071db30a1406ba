// Shows an error banner for failed htmx requests; the page content does not change.
"use strict";
(() => {
  function report(text) {
    const place = document.getElementById("messages");
    if (!place) return;
    const banner = document.createElement("p");
    banner.className = "banner banner-error";
    banner.setAttribute("role", "alert");
    banner.dataset.problem = "";
    banner.textContent = text;
    // Show only the latest: ten failed polls are one banner.
    place.querySelector("[data-problem]")?.remove();
    place.append(banner);
  }

  document.addEventListener("htmx:responseError", ({ detail: { xhr } }) => {
    const id = xhr.getResponseHeader("X-Request-ID");
    const busy = xhr.status === 429 || xhr.status === 503;
    const status = busy ? "The server is busy" : `The request failed with HTTP status ${xhr.status}`;
    report(`${status}. Try again later.${id ? ` Request ID: ${id}.` : ""}`);
  });
  document.addEventListener("htmx:sendError", () => report("The server cannot be reached. This page may be outdated."));
  document.addEventListener("htmx:timeout", () => report("The request timed out. Try again later."));
  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    if (detail.successful) document.querySelector("#messages [data-problem]")?.remove();
  });
})();
