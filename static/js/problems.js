// Requests of htmx that fail say so on the page; the page itself stays as it was.
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
    // The last one counts; ten failed polls are one message.
    place.querySelector("[data-problem]")?.remove();
    place.append(banner);
  }

  document.addEventListener("htmx:responseError", ({ detail: { xhr } }) => {
    const id = xhr.getResponseHeader("X-Request-ID");
    const busy = xhr.status === 429 || xhr.status === 503;
    const status = busy ? "The server is busy" : `The server answered ${xhr.status}`;
    report(`${status}. Try again in a moment.${id ? ` Request ${id}.` : ""}`);
  });
  document.addEventListener("htmx:sendError", () => report("The server cannot be reached. What is shown may be old."));
  document.addEventListener("htmx:timeout", () => report("The server took too long to answer. Try again in a moment."));
  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    if (detail.successful) document.querySelector("#messages [data-problem]")?.remove();
  });
})();
