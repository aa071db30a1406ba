// Trusted Types: with `require-trusted-types-for 'script'` the browser refuses strings where it would parse HTML.
// htmx parses what our own server sends as strings, so HTML may pass; there all foreign text is escaped by the
// templates. Scripts and script addresses made from strings stay refused: the policy has no way to make them.
"use strict";
if (window.trustedTypes) trustedTypes.createPolicy("default", { createHTML: (html) => html });
