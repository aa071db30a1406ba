// The slider of the state of a run: shows the number of the event while it moves, and loads the state when it stops.
"use strict";
(() => {
  const field = (id) => document.getElementById(id);

  document.addEventListener("input", ({ target }) => {
    if (target.id === "state-range") field("state-seq").value = target.value;
  });
  document.addEventListener("change", ({ target }) => {
    if (target.id === "state-range") field("state-seq").form.requestSubmit();
  });
})();
