// Talks to an agent with npm's @ag-ui/client, which verifies the order of events:
// node run_ag_ui_agent.mjs DIRECTORY URL AUTHORIZATION. DIRECTORY holds node_modules.
// Asks, answers the question that interrupts, and asks again. Prints what each run brought as a line of JSON.
import { createRequire } from "node:module";
import { join } from "node:path";

const [directory, url, authorization] = process.argv.slice(2);
const { HttpAgent } = createRequire(join(directory, "node_modules", "/"))("@ag-ui/client");
const agent = new HttpAgent({ url, headers: { Authorization: authorization } });

const run = async (text, parameters = {}) => {
  if (text) agent.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
  const types = [];
  await agent.runAgent(parameters, { onEvent: ({ event }) => void types.push(event.type) });
  const messages = agent.messages.map(({ role, content, toolCalls }) => ({
    role,
    content,
    calls: toolCalls?.map((call) => call.function),
  }));
  console.log(JSON.stringify({ types, messages, state: agent.state, interrupts: agent.pendingInterrupts }));
};

await run("Go.");
const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: "the red one" }));
await run(null, { resume });
await run("And now?");
