// Follows a stream with npm's eventsource, in several connections: node follow_with_eventsource.mjs DIRECTORY URL COUNT.
// DIRECTORY holds node_modules; the environment variable COOKIE is sent along. Prints each connection's IDs as JSON.
import { createRequire } from "node:module";
import { join } from "node:path";

const [directory, url, count] = process.argv.slice(2);
const { EventSource } = createRequire(join(directory, "node_modules", "/"))("eventsource");

const withCookie = (input, init) => fetch(input, { ...init, headers: { ...init.headers, Cookie: process.env.COOKIE } });

// While it waits to reconnect, the library lets the process end.
const waiting = setInterval(() => {}, 60_000);
let open = Number(count);

const end = (ids) => {
  console.log(JSON.stringify(ids));
  open -= 1;
  if (!open) clearInterval(waiting);
};

for (let number = 0; number < Number(count); number += 1) {
  const ids = [];
  const source = new EventSource(url, { fetch: withCookie });
  source.addEventListener("message", (event) => ids.push(Number(event.lastEventId)));
  source.addEventListener("stream-reset", () => ids.push("stream-reset"));
  source.addEventListener("end", () => {
    source.close();
    end(ids);
  });
  source.addEventListener("error", (error) => {
    if (source.readyState === EventSource.CLOSED) {
      end([...ids, `closed: ${error.code} ${error.message}`]);
    }
  });
}
