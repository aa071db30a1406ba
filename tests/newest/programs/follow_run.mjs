// Follows the events of a run with eventsource, and prints what they say as JSON: node follow_run.mjs. RUN_ID names the run.
import { EventSource } from "eventsource";

const { SITE_URL, PROJECT, KEY, RUN_ID } = process.env;
const url = `${SITE_URL}/api/projects/${PROJECT}/agent-runs/${RUN_ID}/events/stream`;
const withKey = (input, init) => fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${KEY}` } });
const NAMES = {
  input_tokens: "input",
  output_tokens: "output",
  cache_read_tokens: "cache read",
  cache_write_tokens: "cache write",
  cache_write_1h_tokens: "cache write 1h",
  reasoning_tokens: "reasoning",
};
const report = { model_calls: 0, tool_calls: [], tokens: {}, cost: 0 };
for (const name of Object.values(NAMES)) report.tokens[name] = 0;

const source = new EventSource(url, { fetch: withKey });
source.addEventListener("message", ({ data }) => {
  const { type, payload } = JSON.parse(data);
  if (type === "llm.turn.end") {
    report.model_calls += 1;
    report.cost += Number(payload.cost_usd);
    for (const [field, name] of Object.entries(NAMES)) report.tokens[name] += payload[field] ?? 0;
  }
  if (type === "tool.end") report.tool_calls.push(payload.tool_name);
});
source.addEventListener("error", (error) => {
  if (source.readyState === EventSource.CLOSED) throw new Error(`closed: ${error.code} ${error.message}`);
});
source.addEventListener("end", () => {
  source.close();
  console.log(JSON.stringify({ ...report, cost: report.cost.toFixed(8) }));
});
