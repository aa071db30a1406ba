// The API's documentation: Swagger UI on our own document. What is tried there is sent as whoever is signed in.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("api-docs");
  const token = JSON.parse(document.body.getAttribute("hx-headers") ?? "{}");
  SwaggerUIBundle({
    domNode: place,
    url: place.dataset.document,
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    tryItOutEnabled: true,
    validatorUrl: null, // It would ask another site.
    requestInterceptor: (request) => {
      Object.assign(request.headers, token);
      return request;
    },
  });

  // Swagger UI has colours of its own for the dark, and a class of its own that asks for them.
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => root.classList.toggle("dark-mode", (root.dataset.theme ?? (dark.matches ? "dark" : "")) === "dark");
  dark.addEventListener("change", follow);
  new MutationObserver(follow).observe(root, { attributeFilter: ["data-theme"] });
  follow();
});
