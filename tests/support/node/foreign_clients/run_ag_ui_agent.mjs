// Talks to an agent with npm's @ag-ui/client, which verifies the order of events:
// node run_ag_ui_agent.mjs DIRECTORY URL AUTHORIZATION. DIRECTORY holds node_modules.
// Asks, approves the call and answers the question that interrupt, runs the tool that it has brought along, and asks
// again, the last time as a page that was loaded anew. Prints what each run brought as a line of JSON.
import { createRequire } from "node:module";
import { join } from "node:path";

const [directory, url, authorization] = process.argv.slice(2);
const { HttpAgent, buildResumeArray } = createRequire(join(directory, "node_modules", "/"))("@ag-ui/client");
const headers = { Authorization: authorization };
let agent = new HttpAgent({ url, headers });

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

const ANSWERS = { tool_call: { approved: true }, input_required: "the red one" };
const tools = [{ name: "paint", description: "Paints the page.", parameters: { properties: { n: { type: "number" } } } }];

const unanswered = () => {
  const answered = new Set(agent.messages.map(({ toolCallId }) => toolCallId));
  return agent.messages.flatMap(({ toolCalls }) => toolCalls ?? []).filter(({ id }) => !answered.has(id));
};

await run("Go.", { tools });
while (agent.pendingInterrupts.length || unanswered().length) {
  if (agent.pendingInterrupts.length) {
    const responses = agent.pendingInterrupts.map(({ id, reason }) => [id, { status: "resolved", payload: ANSWERS[reason] }]);
    await run(null, { tools, resume: buildResumeArray(agent.pendingInterrupts, Object.fromEntries(responses)) });
  } else {
    for (const { id } of unanswered()) {
      agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: id, content: "painted" });
    }
    await run(null, { tools });
  }
}
await run("And now?");
agent = new HttpAgent({ url, headers, threadId: agent.threadId });
await run("Do you remember?");
