// Checks the order of AG-UI events with the verifier of npm's @ag-ui/client: node verify_ag_ui_events.mjs DIRECTORY.
// DIRECTORY holds node_modules. Each line of the input is a stream, a JSON array; for each, prints a line: "ok" or a fault.
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(join(process.argv[2], "node_modules", "/"));
const { verifyEvents } = require("@ag-ui/client");
const { from, lastValueFrom } = require("rxjs");

for await (const line of createInterface({ input: process.stdin })) {
  try {
    await lastValueFrom(verifyEvents()(from(JSON.parse(line))), { defaultValue: null });
    console.log("ok");
  } catch (error) {
    console.log(String(error.message).replaceAll("\n", " "));
  }
}
