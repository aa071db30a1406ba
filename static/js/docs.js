// The API reference: Swagger UI for the site's OpenAPI document. Requests are sent as the logged-in user.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("api-docs");
  const token = JSON.parse(document.body.getAttribute("hx-headers") ?? "{}");
  SwaggerUIBundle({
    domNode: place,
    url: place.dataset.document,
    deepLinking: true,
    docExpansion: "none", // Swagger UI 5.33 stops in the middle of a list of more than 128 operations.
    defaultModelsExpandDepth: 0,
    tryItOutEnabled: true,
    validatorUrl: null, // The default sends the document to another site.
    requestInterceptor: (request) => {
      Object.assign(request.headers, token);
      return request;
    },
  });

  // Swagger UI has its own dark theme, enabled by a class.
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => root.classList.toggle("dark-mode", (root.dataset.theme ?? (dark.matches ? "dark" : "")) === "dark");
  dark.addEventListener("change", follow);
  new MutationObserver(follow).observe(root, { attributeFilter: ["data-theme"] });
  follow();
});
