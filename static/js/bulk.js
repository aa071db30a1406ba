// Bulk actions of the list: counts selected rows, selects all rows of the page, and opens the preview in a dialog.
// Without JavaScript the same form opens a separate page.
"use strict";
(() => {
  const form = document.getElementById("bulk");
  const dialog = document.getElementById("bulk-dialog");
  const body = document.getElementById("bulk-body");
  if (!form || !dialog) return;

  const button = form.querySelector("[data-bulk]");
  const label = form.querySelector("[data-bulk-label]");
  const compare = form.querySelector("[data-compare]");
  const all = document.querySelector("[data-pick-all]");
  const boxes = () => [...document.querySelectorAll('input[name="id"][form="bulk"]')];

  function count() {
    const checkboxes = boxes();
    const selected = checkboxes.filter((box) => box.checked).length;
    button.disabled = !selected;
    compare.disabled = selected !== 2;
    compare.title = selected === 2 ? "" : "Select two runs";
    label.textContent = selected ? `Resume ${selected} selected…` : "Resume selected…";
    all.checked = selected > 0 && selected === checkboxes.length;
    all.indeterminate = selected > 0 && selected < checkboxes.length;
  }

  function selectAll(checked) {
    for (const box of boxes()) box.checked = checked;
    count();
  }

  document.addEventListener("change", ({ target }) => {
    if (target === all) selectAll(all.checked);
    else if (target.matches('input[name="id"]')) count();
  });
  document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
    if (target === body && !dialog.open) dialog.showModal();
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  // Buttons of other actions submit the form without htmx, to their own address.
  const isPlain = ({ submitter }) => submitter?.matches("[data-plain]");
  document.addEventListener("submit", (event) => isPlain(event) && event.stopPropagation(), { capture: true });
  // Enter in the field of the label would press the first button of the form, which resumes.
  form.elements.new_label.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    form.querySelector("[data-plain]").click();
  });
  // Clear the selection after a resume; keep it if only the preview was shown.
  dialog.addEventListener("close", () => {
    if (body.querySelector("[data-done]")) selectAll(false);
    body.replaceChildren();
  });
  // Browsers restore checkboxes when the user goes back.
  addEventListener("pageshow", count);
  count();
})();
