// What a reader has done inside an element survives its replacement: opened details, typed text, focus, selected text.
// htmx keeps the focus of elements that have an id; here is the rest.
"use strict";
(() => {
  const FIELDS = "input:not([type=hidden], [type=submit]), textarea, select";

  // Only what the reader touched is carried over: a card may open or close its details by itself when it is finished.
  document.addEventListener("click", (event) => {
    const details = event.target.closest("summary")?.parentElement;
    if (details) details.dataset.touched = "";
  });

  const keyOf = (element, index) => element.dataset.key || element.name || String(index);
  const keyed = (root, selector) =>
    [...root.querySelectorAll(selector)].map((found, index) => [keyOf(found, index), found]);

  function remember(root) {
    const focused = root.contains(document.activeElement) ? document.activeElement : null;
    return {
      details: keyed(root, "details")
        .filter(([, found]) => "touched" in found.dataset)
        .map(([key, found]) => [key, found.open]),
      fields: keyed(root, FIELDS)
        .filter(([, field]) => isDirty(field))
        .map(([key, field]) => [key, valueOf(field)]),
      focus: focused && focused !== root ? focusOf(root, focused) : null,
      selection: selectionIn(root),
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

  // By a name where there is one, for buttons may come and go around it; else the n-th of its kind.
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
      const found = details.get(key);
      if (!found) continue;
      found.open = open;
      found.dataset.touched = "";
    }
    const fields = new Map(keyed(root, FIELDS));
    for (const [key, value] of kept.fields) if (fields.has(key)) Object.assign(fields.get(key), value);
  }

  function restoreFocus(root, { focus }) {
    const found = focus && root.querySelectorAll(focus.place[0])[focus.place[1]];
    if (!found || root.contains(document.activeElement)) return;
    found.focus({ preventScroll: true });
    if (focus.selectionStart !== null && found.matches("textarea, input")) {
      found.setSelectionRange(focus.selectionStart, focus.selectionEnd);
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

  // Words before it may have changed ("running 12 s" is now "completed"): where the same text stands nearest.
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

  // --- The two ways in which htmx replaces things ------------------------------------------------------------------

  // Out of band: the new element is at hand before it is shown, so nothing flickers.
  document.addEventListener("htmx:oobBeforeSwap", ({ detail: { target, fragment } }) => {
    const fresh = fragment.firstElementChild;
    // A piece of streamed text replaces nothing; a card may come back under another id.
    if (!fresh?.id) return;
    const kept = remember(target);
    restoreDetails(fresh, kept);
    if (!kept.focus && !kept.selection) return;
    // After this swap and before the next paint.
    queueMicrotask(() => {
      if (!fresh.isConnected) return;
      restoreFocus(fresh, kept);
      restoreSelection(fresh, kept);
    });
  });

  // By a request: the head of a run is fetched anew whenever its status changes. Not under a button that is being
  // pressed: the browser would see no click.
  const waiting = new Map();
  let pressed = null;
  document.addEventListener("pointerdown", ({ target }) => (pressed = target), { capture: true });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(release), { capture: true });

  let late = null;
  function release() {
    pressed = null;
    const spec = { swapStyle: "innerHTML", swapDelay: 0, settleDelay: 0 };
    if (late?.target.isConnected) htmx.swap(late.target, late.serverResponse, spec, { eventInfo: late });
    late = null;
  }

  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const { target } = detail;
    if (target.id) waiting.set(target.id, remember(target));
    if (target.id !== "head" || !target.contains(pressed)) return;
    detail.shouldSwap = false;
    late = detail;
  });
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
