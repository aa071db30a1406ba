// Talks to an agent with npm's @ag-ui/client, which verifies the order of events:
// node run_ag_ui_agent.mjs DIRECTORY URL AUTHORIZATION. DIRECTORY holds node_modules.
// Asks, approves the call and answers the question that interrupt, and asks again. Prints what each run brought as a
// line of JSON.
import { createRequire } from "node:module";
import { join } from "node:path";

const [directory, url, authorization] = process.argv.slice(2);
const { HttpAgent, buildResumeArray } = createRequire(join(directory, "node_modules", "/"))("@ag-ui/client");
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

const ANSWERS = { tool_call: { approved: true }, input_required: "the red one" };

await run("Go.");
while (agent.pendingInterrupts.length) {
  const answers = agent.pendingInterrupts.map(({ id, reason }) => [id, { status: "resolved", payload: ANSWERS[reason] }]);
  await run(null, { resume: buildResumeArray(agent.pendingInterrupts, Object.fromEntries(answers)) });
}
await run("And now?");
