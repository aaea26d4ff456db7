// List everything of one server and make calls, with the TypeScript SDK 1.x or 2.x; print a survey as JSON.
// Arguments: `1` or `2`, and the file of the plan; see survey.py for its members.
import { readFileSync } from "node:fs";

const [generation, file] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(file, "utf8"));

async function connected() {
  const info = { name: "survey", version: "1.0.0" };
  if (generation === "1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const client = new Client(info);
    await client.connect(
      typeof plan.target === "string"
        ? new StreamableHTTPClientTransport(new URL(plan.target))
        : new StdioClientTransport({ ...plan.target, stderr: "ignore" }),
    );
    return { client, call: (params, options) => client.callTool(params, undefined, options) };
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const client = new Client(info, { versionNegotiation: { mode: "auto", probe: { timeoutMs: 3000 } } });
  await client.connect(
    typeof plan.target === "string"
      ? new StreamableHTTPClientTransport(new URL(plan.target))
      : new StdioClientTransport({ ...plan.target, stderr: "ignore" }),
  );
  return { client, call: (params, options) => client.callTool(params, options) };
}

const { client, call } = await connected();
const capabilities = client.getServerCapabilities() ?? {};

async function listed(method, member, capability) {
  if (!(capability in capabilities)) return [];
  const found = [];
  let cursor;
  try {
    do {
      const page = await client[method](cursor === undefined ? {} : { cursor }, { timeout: 20_000 });
      found.push(...page[member]);
      cursor = page.nextCursor;
    } while (cursor);
    return found;
  } catch (error) {
    return { error: String(error).slice(0, 400) };
  }
}

const survey = {
  tools: await listed("listTools", "tools", "tools"),
  prompts: await listed("listPrompts", "prompts", "prompts"),
  resources: await listed("listResources", "resources", "resources"),
  templates: await listed("listResourceTemplates", "resourceTemplates", "resources"),
  calls: [],
};
for (const [name, given] of plan.calls) {
  try {
    const result = await call({ name, arguments: given }, { timeout: plan.deadline_s * 1000 });
    survey.calls.push({ result });
  } catch (error) {
    const late = error.code === -32001 || error.code === "REQUEST_TIMEOUT";
    survey.calls.push(
      late ? { late: true } : { error: { code: error.code ?? null, message: String(error.message).slice(0, 1000) } },
    );
  }
}
process.stdout.write(`${JSON.stringify(survey)}\n`, () => process.exit(0));
