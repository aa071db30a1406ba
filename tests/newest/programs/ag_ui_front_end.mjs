// A front end that runs an agent of the site by AG-UI, and prints what it was shown as JSON: node ag_ui_front_end.mjs.
import { HttpAgent } from "@ag-ui/client";

const { SITE_URL, PROJECT, KEY, PROMPT } = process.env;
const url = `${SITE_URL}/api/projects/${PROJECT}/agents/weather/ag-ui`;
const agent = new HttpAgent({ url, headers: { Authorization: `Bearer ${KEY}` } });
agent.addMessage({ id: crypto.randomUUID(), role: "user", content: PROMPT });
let finished;
await agent.runAgent({}, { onEvent: ({ event }) => void (event.type === "RUN_FINISHED" && (finished = event)) });

const sum = (name) => finished.usage.reduce((total, each) => total + each[name], 0);
// Each part of an answer is a message.
const shown = [];
for (const { role, content } of agent.messages.filter((message) => message.content)) {
  const last = shown.at(-1);
  if (role === "assistant" && last?.[0] === role) last[1] += content;
  else shown.push([role, content]);
}
console.log(
  JSON.stringify({
    messages: shown,
    tool_calls: agent.messages.flatMap(({ toolCalls }) => toolCalls ?? []).map((call) => call.function.name),
    tokens: {
      input: sum("inputTokens"),
      output: sum("outputTokens"),
      "cache read": sum("cachedInputTokens"),
      "cache write": sum("cacheWriteInputTokens"),
    },
  }),
);
