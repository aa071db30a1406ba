// Keeps what was typed into forms while an ended session makes the user log in: it is there again afterwards.
// Only in this tab, for an hour, until it is shown again, and only for the same user. Whoever logs out leaves nothing.
// Files, passwords and the fields marked data-secret are not kept.
"use strict";
(() => {
  const KEY = "agentops:unsent";
  const FIELDS = "textarea, select, input:not([type=hidden], [type=submit], [type=password], [type=file])";
  const HOUR_MS = 3_600_000;
  const user = document.body.dataset.user;
  const isLogin = document.querySelector("form.login") !== null;

  let isLoggingOut = false;

  function read() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEY));
      if (kept && Date.now() - kept.at < HOUR_MS) return kept;
      sessionStorage.removeItem(KEY);
    } catch {
      // Without storage, nothing is kept.
    }
    return null;
  }

  function write(kept) {
    try {
      if (kept) sessionStorage.setItem(KEY, JSON.stringify(kept));
      else sessionStorage.removeItem(KEY);
    } catch {
      // Without storage, or in a full one, the text is lost as in any form.
    }
  }

  const here = () => location.pathname + location.search;
  const keyOf = (element, index) => `${element.getAttribute("action") ?? element.getAttribute("hx-post")} ${index}`;
  const fieldsOf = (form) => [...form.elements].filter((field) => field.name && field.matches(FIELDS) && !field.closest("[data-secret]"));
  const isChoice = (field) => field.type === "checkbox" || field.type === "radio";

  function isDirty(field) {
    if (field.matches("select")) return [...field.options].some((option) => option.selected !== option.defaultSelected);
    return isChoice(field) ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
  }

  function typed() {
    const forms = [...document.forms].map((form, index) => {
      const fields = fieldsOf(form).map((field, at) => [field.name, at, field]).filter(([, , field]) => isDirty(field));
      return [keyOf(form, index), fields.map(([name, at, field]) => [name, at, isChoice(field) ? field.checked : field.value])];
    });
    return forms.filter(([, fields]) => fields.length);
  }

  function restore(kept) {
    const forms = [...document.forms];
    kept.forms = kept.forms.filter(([key, fields]) => {
      const form = forms.find((form, index) => keyOf(form, index) === key) ?? forms.find((form) => keyOf(form, "") === key.replace(/\d+$/, ""));
      if (form) fill(form, fields);
      return !form;
    });
    write(kept.forms.length ? kept : null);
  }

  function fill(form, fields) {
    const all = fieldsOf(form);
    for (const [name, at, value] of fields) {
      const field = all[at]?.name === name ? all[at] : all.find((other) => other.name === name);
      if (!field) continue;
      if (isChoice(field)) field.checked = value;
      else field.value = value;
      // For scripts that count what is chosen, and for the details around it.
      field.dispatchEvent(new Event("input", { bubbles: true }));
      for (let around = field.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
    }
  }

  // Whatever makes the page go: a form that is sent, or a poll whose answer is the login.
  addEventListener("pagehide", () => {
    if (isLogin || isLoggingOut) return;
    const forms = typed();
    const kept = read();
    if (forms.length) write({ path: here(), user, forms, isRefused: false, at: Date.now() });
    else if (kept && !kept.isRefused) write(null);
  });

  addEventListener("submit", (event) => {
    if (!event.target.matches("[data-logout]")) return;
    isLoggingOut = true;
    write(null);
  });
  // The page may come back from the browser's memory.
  addEventListener("pageshow", () => (isLoggingOut = false));

  const kept = read();
  if (!kept) return;
  if (isLogin) {
    write({ ...kept, isRefused: true });
    setTimeout(() => write(null), kept.at + HOUR_MS - Date.now());
  } else if (!kept.isRefused || kept.user !== user) write(null);
  else if (kept.path === here()) {
    restore(kept);
    // Forms that are loaded later.
    document.addEventListener("htmx:load", () => kept.forms.length && restore(kept));
  }
})();
