// The npm package openai as a client of `tl serve`:  clients.mjs URL FOLDER_OF_NODE_MODULES
import assert from "node:assert";
import { createRequire } from "node:module";

const [url, folder] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai").OpenAI;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "clients" });
const model = "smollm2";
const messages = [{ role: "user", content: "What is the weather in Oslo?" }];

const whole = await client.chat.completions.create({ model, messages, max_tokens: 10, temperature: 0 });
let text = "";
for await (const part of await client.chat.completions.create({ model, messages, max_tokens: 10, temperature: 0, stream: true })) {
    text += part.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);
assert.notEqual(text, "");

const parameters = { type: "object", properties: { city: { type: "string", maxLength: 12 } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const called = await client.chat.completions.create({ model, messages, tools, tool_choice: "required", temperature: 0, max_tokens: 60 });
assert.ok(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).city);

const vectors = await client.embeddings.create({ model, input: ["a cat"] });
assert.ok(Math.abs(vectors.data[0].embedding.reduce((sum, v) => sum + v * v, 0) - 1) < 1e-4);

const response = await client.responses.create({ model, input: "Hello", max_output_tokens: 8, temperature: 0 });
assert.notEqual(response.output_text, "");
await assert.rejects(client.chat.completions.create({ model: "other", messages }), OpenAI.NotFoundError);

// A stream that its reader leaves ends at the server.
const left = await client.chat.completions.create({ model, messages, max_tokens: 1000, stream: true });
for await (const _ of left) break;
left.controller.abort();
