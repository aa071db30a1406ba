// Vercel's AI SDK with its own spans: node ai_sdk_agent.mjs claude|gpt|responses|stream. Runs beside its node_modules.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { OpenTelemetry } from "@ai-sdk/otel";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { generateText, registerTelemetry, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { ANTHROPIC_BASE_URL, OPENAI_BASE_URL, SYSTEM, PROMPT, CLAUDE, GPT } = process.env;
const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
registerTelemetry(new OpenTelemetry());

const anthropic = createAnthropic({ baseURL: `${ANTHROPIC_BASE_URL}/v1`, apiKey: "none" });
const openai = createOpenAI({ baseURL: OPENAI_BASE_URL, apiKey: "none" });
const models = {
  claude: () => anthropic(CLAUDE),
  stream: () => anthropic(CLAUDE),
  gpt: () => openai.chat(GPT),
  responses: () => openai.responses(GPT),
};
const which = process.argv[2];
const options = {
  model: models[which](),
  instructions: SYSTEM,
  prompt: PROMPT,
  maxRetries: 0,
  stopWhen: stepCountIs(5),
  telemetry: { isEnabled: true, functionId: "weather" },
  tools: {
    get_weather: tool({
      description: "Return the weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async () => "sunny",
    }),
    get_time: tool({
      description: "Return the time in a time zone.",
      inputSchema: z.object({ zone: z.string() }),
      execute: async () => "12:00",
    }),
  },
};
console.log(which === "stream" ? await streamText(options).text : (await generateText(options)).text);
await provider.forceFlush();
await provider.shutdown();
