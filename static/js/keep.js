// Preserves the user's state when an element is replaced: opened details, typed text, focus and selected text.
// htmx itself preserves only the focus of elements with an id.
"use strict";
(() => {
  const FIELDS = "input:not([type=hidden], [type=submit]), textarea, select";

  // Only details that the user toggled: a finished card may open or close its own details.
  document.addEventListener("click", (event) => {
    const details = event.target.closest("summary")?.parentElement;
    if (details) details.dataset.touched = "";
  });

  const keyOf = (element, index) => element.dataset.key || element.name || String(index);
  const keyed = (root, selector) =>
    [...root.querySelectorAll(selector)].map((element, index) => [keyOf(element, index), element]);

  // `withSelection`: looking for selected text needs a layout of the page.
  function remember(root, withSelection = true) {
    const focused = root.contains(document.activeElement) ? document.activeElement : null;
    return {
      details: keyed(root, "details")
        .filter(([, element]) => "touched" in element.dataset)
        .map(([key, element]) => [key, element.open]),
      fields: keyed(root, FIELDS)
        .filter(([, field]) => isDirty(field))
        .map(([key, field]) => [key, valueOf(field)]),
      focus: focused && focused !== root ? focusOf(root, focused) : null,
      selection: withSelection ? selectionIn(root) : null,
    };
  }

  function isDirty(field) {
    if (field.matches("select")) return [...field.options].some((option) => option.selected !== option.defaultSelected);
    return field.type === "checkbox" || field.type === "radio"
      ? field.checked !== field.defaultChecked
      : field.value !== field.defaultValue;
  }

  function valueOf(field) {
    return field.type === "checkbox" || field.type === "radio" ? { checked: field.checked } : { value: field.value };
  }

  // By id or data-key if there is one, because buttons around it may change; otherwise by index among its tag name.
  function placeOf(root, focused) {
    const key = focused.matches("summary") && focused.parentElement.dataset.key;
    if (focused.id) return [`#${CSS.escape(focused.id)}`, 0];
    if (key) return [`details[data-key="${CSS.escape(key)}"] > summary`, 0];
    return [focused.tagName, [...root.querySelectorAll(focused.tagName)].indexOf(focused)];
  }

  function focusOf(root, focused) {
    const { selectionStart = null, selectionEnd = null } = focused;
    return { place: placeOf(root, focused), selectionStart, selectionEnd };
  }

  function restoreDetails(root, kept) {
    const details = new Map(keyed(root, "details"));
    for (const [key, open] of kept.details) {
      const element = details.get(key);
      if (!element) continue;
      element.open = open;
      element.dataset.touched = "";
      // A card that has become a single line stays open around what the user reads.
      if (open) element.parentElement.closest("details")?.setAttribute("open", "");
    }
    const fields = new Map(keyed(root, FIELDS));
    for (const [key, value] of kept.fields) if (fields.has(key)) Object.assign(fields.get(key), value);
  }

  function restoreFocus(root, { focus }) {
    const element = focus && root.querySelectorAll(focus.place[0])[focus.place[1]];
    if (!element || root.contains(document.activeElement)) return;
    element.focus({ preventScroll: true });
    if (focus.selectionStart !== null && element.matches("textarea, input")) {
      element.setSelectionRange(focus.selectionStart, focus.selectionEnd);
    }
  }

  // --- Selected text, as offsets into the text of the element ------------------------------------------------------

  function selectionIn(root) {
    const selection = getSelection();
    if (selection.isCollapsed) return null;
    const range = selection.getRangeAt(0);
    if (!root.contains(range.commonAncestorContainer)) return null;
    const before = new Range();
    before.setStart(root, 0);
    before.setEnd(range.startContainer, range.startOffset);
    const start = before.toString().length;
    return { start, text: range.toString() };
  }

  function restoreSelection(root, { selection }) {
    if (!selection) return;
    const { text } = selection;
    const start = nearest(root.textContent, text, selection.start);
    if (start < 0) return;
    const range = new Range();
    range.setStart(...pointAt(root, start));
    range.setEnd(...pointAt(root, start + text.length));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }

  // Text before it may have changed ("running 12 s" is now "completed"), so find the nearest occurrence.
  function nearest(all, text, start) {
    const before = all.lastIndexOf(text, start);
    const after = all.indexOf(text, start);
    return before < 0 || (after >= 0 && after - start < start - before) ? after : before;
  }

  function pointAt(root, offset) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    let node = walker.nextNode();
    while (node && offset > node.length) {
      offset -= node.length;
      node = walker.nextNode();
    }
    return node ? [node, offset] : [root, root.childNodes.length];
  }

  // --- What is pressed is replaced when it is released: otherwise the browser would not fire the click event ---------------

  let pressed = null;
  const late = new Map(); // target → the newest of its replacements
  function isDelayed(target, act) {
    if (!target.contains(pressed)) return false;
    late.set(target, act);
    return true;
  }

  function release() {
    pressed = null;
    for (const [target, act] of late) if (target.isConnected) act();
    late.clear();
  }

  document.addEventListener("pointerdown", ({ target }) => (pressed = target), { capture: true });
  // The menu of a right click takes the event of its release.
  for (const name of ["pointerup", "pointercancel", "contextmenu"]) {
    addEventListener(name, () => setTimeout(release), { capture: true });
  }

  // --- The ways in which elements are replaced -------------------------------------------------------------------------

  // Rows of lists and other parts of a page, which htmx replaces out of band.
  document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
    const { target, fragment } = detail;
    const fresh = fragment.firstElementChild;
    if (!fresh?.id) return;
    if (fresh.id === target.id && isDelayed(target, () => replace(target, fresh))) detail.shouldSwap = false;
    else carryOver(target, fresh, true);
  });

  function replace(target, fresh) {
    carryOver(target, fresh, true);
    target.replaceWith(fresh);
    htmx.process(fresh);
  }

  // Cards of the timeline (rows.js).
  let isSelecting = false;
  document.addEventListener("agentops:before-rows", () => {
    isSelecting = !getSelection().isCollapsed;
  });
  document.addEventListener("agentops:replace", ({ detail: { target, fresh } }) => carryOver(target, fresh, isSelecting));

  // The new element is available before it is inserted, so nothing flickers.
  function carryOver(target, fresh, withSelection) {
    const kept = remember(target, withSelection);
    restoreDetails(fresh, kept);
    if (!kept.focus && !kept.selection) return;
    // After this swap, before the next paint.
    queueMicrotask(() => {
      if (!fresh.isConnected) return;
      restoreFocus(fresh, kept);
      restoreSelection(fresh, kept);
    });
  }

  // Rows that leave a long timeline and come back (edges.js).
  const MOST_LEFT = 1000;
  const left = new Map();
  document.addEventListener("agentops:rows-leave", ({ detail: { rows } }) => {
    for (const row of rows) if (row.querySelector("details[data-touched]")) left.set(row.id, remember(row));
    for (const id of [...left.keys()].slice(0, Math.max(0, left.size - MOST_LEFT))) left.delete(id);
  });
  document.addEventListener("agentops:rows-enter", ({ detail: { rows } }) => {
    for (const row of rows) if (left.has(row.id)) restoreDetails(row, left.get(row.id));
  });

  // Request swaps: parts of a page that are loaded again, such as the header of a run.
  const waiting = new Map();
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    if (!detail.shouldSwap) return;
    if (isDelayed(detail.target, () => swap(detail))) detail.shouldSwap = false;
    else rememberUntilSwapped(detail.target);
  });

  function rememberUntilSwapped(target) {
    if (target.id) waiting.set(target.id, remember(target));
  }

  // As htmx does with a response.
  function swap(detail) {
    const { target, serverResponse, requestConfig } = detail;
    const { elt } = requestConfig;
    rememberUntilSwapped(target);
    const attributeOf = (name) => elt.closest(`[${name}]`)?.getAttribute(name);
    const spec = { swapStyle: attributeOf("hx-swap"), swapDelay: 0, settleDelay: 0 };
    const [select, selectOOB] = [attributeOf("hx-select"), attributeOf("hx-select-oob")];
    htmx.swap(target, serverResponse, spec, { select, selectOOB, eventInfo: detail, contextElement: elt });
  }

  document.addEventListener("htmx:afterSwap", ({ detail: { target } }) => {
    const kept = target?.id && waiting.get(target.id);
    const fresh = kept && document.getElementById(target.id);
    if (!fresh) return;
    waiting.delete(target.id);
    restoreDetails(fresh, kept);
    restoreFocus(fresh, kept);
    restoreSelection(fresh, kept);
  });
})();
