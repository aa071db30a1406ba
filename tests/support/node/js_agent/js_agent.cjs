// An agent that is traced by OpenTelemetry's JavaScript SDK, whose exporter sends JSON.
// Usage: node js_agent.cjs URL KEY gzip|none, in the directory of its node_modules (NODE_PATH).
const { BasicTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-base");
const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-http");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const api = require("@opentelemetry/api");

const [url, key, compression] = process.argv.slice(2);
const TURNS = 7;

async function main() {
  const exporter = new OTLPTraceExporter({
    url: `${url}/v1/traces`, headers: { Authorization: `Bearer ${key}` }, compression, timeoutMillis: 60000,
  });
  const provider = new BasicTracerProvider({
    resource: resourceFromAttributes({ "service.name": "js" }),
    spanProcessors: [new BatchSpanProcessor(exporter)],
  });
  const tracer = provider.getTracer("js.agent", "1.0");
  const start = (name, attributes, context) => tracer.startSpan(name, { attributes }, context);

  const root = start("invoke_agent js", {
    "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": `js ${compression}`,
    list: ["a", "b"], numbers: [1, 2.5], large: 9007199254740991, negative: -3, flag: true,
  });
  const within = api.trace.setSpan(api.ROOT_CONTEXT, root);
  for (let turn = 0; turn < TURNS; turn++) {
    const text = `héllo ${turn} 🎉`;
    const chat = start("chat claude", {
      "gen_ai.operation.name": "chat", "gen_ai.request.model": "claude-haiku-4-5",
      "gen_ai.usage.input_tokens": 10 * turn, "gen_ai.usage.output_tokens": turn,
      "gen_ai.input.messages": JSON.stringify([{ role: "user", parts: [{ type: "text", content: text }] }]),
      "gen_ai.output.messages": JSON.stringify([
        { role: "assistant", parts: [{ type: "tool_call", id: `call_${turn}`, name: "bash", arguments: { turn } }] },
      ]),
    }, within);
    chat.end();
    const tool = start("execute_tool bash", {
      "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash", "gen_ai.tool.call.id": `call_${turn}`,
    }, within);
    if (turn === 2) {
      tool.recordException(new Error("ENOENT"));
      tool.setStatus({ code: api.SpanStatusCode.ERROR, message: "ENOENT" });
    }
    tool.end();
    await new Promise((done) => setTimeout(done, 2)); // so that the turns begin one after the other
  }
  root.end();
  await provider.forceFlush();
  await provider.shutdown();
}

main();
