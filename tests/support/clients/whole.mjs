// A client on the TypeScript SDK 1.x that uses everything the reference server has, and answers what it asks.
// Prints a report as JSON; see `installed.whole_report` for its options.
import { parseArgs } from "node:util";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const { values: options } = parseArgs({
  options: { target: { type: "string" }, prefix: { type: "string", default: "" }, wanted: { type: "string" } },
});
const { prefix } = options;
const wanted = JSON.parse(options.wanted);

const transport = options.target.startsWith("{")
  ? new StdioClientTransport(JSON.parse(options.target))
  : new StreamableHTTPClientTransport(new URL(options.target));

const capabilities = { sampling: {}, elicitation: { form: {}, url: {} }, roots: { listChanged: true } };
const client = new Client({ name: "whole-client", version: "1.0.0" }, { capabilities });
const asked = [];
client.setRequestHandler(CreateMessageRequestSchema, ({ method, params }) => {
  asked.push({ method, params });
  return { model: "none", role: "assistant", stopReason: "endTurn", content: { type: "text", text: "sampled" } };
});
client.setRequestHandler(ElicitRequestSchema, ({ method, params }) => {
  asked.push({ method, params });
  return params.mode === "url" ? { action: "accept" } : { action: "accept", content: { name: "Ana", check: true } };
});
client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: "file:///somewhere", name: "somewhere" }] }));
await client.connect(transport);

// Another server may come up later than its gateway: wait for the last tool that is wanted.
const deadline = Date.now() + 20000;
const names = async () => (await client.listTools()).tools.map((tool) => tool.name);
while (!(await names()).includes(prefix + wanted.calls[0].name)) {
  if (Date.now() > deadline) throw new Error("its tools are not listed");
}

const attempt = async (work) => {
  try {
    return { result: await work() };
  } catch ({ code, message, data }) {
    return { error: { code, message, data } };
  }
};
const own = (name) => (name.startsWith(prefix) ? name.slice(prefix.length) : null);
const named = (items) =>
  Object.fromEntries(items.map((one) => [own(one.name), { ...one, name: own(one.name) }]).filter(([name]) => name));

const report = { capabilities: client.getServerCapabilities(), calls: [], prompts: [], reads: [], completions: [] };
report.tools = named((await client.listTools()).tools);
report.promptList = named((await client.listPrompts()).prompts);
report.resources = (await client.listResources()).resources;
report.templates = (await client.listResourceTemplates()).resourceTemplates;
for (const { name, arguments: given } of wanted.calls) {
  const params = { name: prefix + name, arguments: given };
  const steps = [];
  const onprogress = ({ progress, total }) => steps.push([progress, total]);
  const outcome = await attempt(() => client.callTool(params, CallToolResultSchema, { onprogress }));
  report.calls.push({ name, ...outcome, steps: steps.length, asked: asked.splice(0) });
}
for (const { name, arguments: given } of wanted.prompts) {
  report.prompts.push(await attempt(() => client.getPrompt({ name: prefix + name, arguments: given })));
}
for (const uri of wanted.reads) {
  report.reads.push(await attempt(() => client.readResource({ uri })));
}
for (const { ref, argument, context } of wanted.completions) {
  const named = ref.name === undefined ? ref : { ...ref, name: prefix + ref.name };
  report.completions.push(await attempt(() => client.complete({ ref: named, argument, context })));
}
process.stdout.write(`${JSON.stringify(report)}\n`);
await client.close();
