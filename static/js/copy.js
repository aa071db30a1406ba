// Copy buttons: <button class="copy" data-copy="text">, data-copy-from="id of the element with the text", or
// data-copy-url="address of the text", for texts that the page shows only in part or in another form.
"use strict";
(() => {
  const FEEDBACK_MS = 1600;

  async function textOf({ dataset }) {
    if (dataset.copyFrom) return document.getElementById(dataset.copyFrom)?.textContent;
    if (!dataset.copyUrl) return dataset.copy;
    const response = await fetch(dataset.copyUrl);
    // After the end of the session, the server redirects to the login.
    if (!response.ok || response.redirected) throw new Error(`the server answered ${response.status}`);
    return response.text();
  }

  // navigator.clipboard needs https or localhost; elsewhere use execCommand.
  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "visually-hidden";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("the browser refused to copy");
  }

  function showResult(button, word) {
    const label = button.dataset.label || button.textContent;
    button.dataset.label = label;
    button.textContent = word;
    button.toggleAttribute("data-copied", word === "Copied");
    const place = document.getElementById("announce");
    if (place) place.textContent = word;
    setTimeout(() => {
      button.textContent = label;
      button.removeAttribute("data-copied");
    }, FEEDBACK_MS);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from], [data-copy-url]");
    if (!button) return;
    try {
      const text = await textOf(button);
      if (text === undefined) return;
      await copy(text);
      showResult(button, "Copied");
    } catch {
      showResult(button, "Copy failed");
    }
  });
})();
