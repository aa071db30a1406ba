// Trusted Types: with `require-trusted-types-for 'script'` the browser refuses strings where it would parse HTML.
// htmx parses HTML strings from this server, so the policy allows HTML; the templates escape untrusted text. Scripts and
// script URLs from strings stay forbidden: the policy does not create them.
"use strict";
if (window.trustedTypes) trustedTypes.createPolicy("default", { createHTML: (html) => html });
