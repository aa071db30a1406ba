// Acting on many rows of the list: how many are chosen, all of the page at once, and the dialog that says what will happen.
// Without it the same form leads to a page of its own.
"use strict";
(() => {
  const form = document.getElementById("bulk");
  const dialog = document.getElementById("bulk-dialog");
  const body = document.getElementById("bulk-body");
  if (!form || !dialog) return;

  const button = form.querySelector("[data-bulk]");
  const label = form.querySelector("[data-bulk-label]");
  const all = document.querySelector("[data-pick-all]");
  const boxes = () => [...document.querySelectorAll('input[name="id"][form="bulk"]')];

  function count() {
    const found = boxes();
    const chosen = found.filter((box) => box.checked).length;
    button.disabled = !chosen;
    label.textContent = chosen ? `Resume ${chosen} chosen…` : "Resume the chosen…";
    all.checked = chosen > 0 && chosen === found.length;
    all.indeterminate = chosen > 0 && chosen < found.length;
  }

  function choose(wanted) {
    for (const box of boxes()) box.checked = wanted;
    count();
  }

  document.addEventListener("change", ({ target }) => {
    if (target === all) choose(all.checked);
    else if (target.matches('input[name="id"]')) count();
  });
  document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
    if (target === body && !dialog.open) dialog.showModal();
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  // What was resumed is chosen no longer; what was only looked at stays.
  dialog.addEventListener("close", () => {
    if (body.querySelector("[data-done]")) choose(false);
    body.replaceChildren();
  });
  // A browser that goes back shows the boxes as they were left.
  addEventListener("pageshow", count);
  count();
})();
