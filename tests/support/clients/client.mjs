// A client on the TypeScript SDK 1.x: connects, lists, calls, prints a report as JSON.
// See `installed.report` for its options and its report.
import { parseArgs } from "node:util";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const { values: options } = parseArgs({
  options: {
    target: { type: "string" },
    calls: { type: "string", default: "[]" },
    headers: { type: "string", default: "{}" },
    surface: { type: "string" },
  },
});
const requestInit = { headers: JSON.parse(options.headers) };

let transport;
if (options.target.startsWith("{")) {
  transport = new StdioClientTransport(JSON.parse(options.target));
} else if (options.target.endsWith("/sse")) {
  transport = new SSEClientTransport(new URL(options.target), { requestInit });
} else {
  transport = new StreamableHTTPClientTransport(new URL(options.target), { requestInit });
}

let protocol = null;
const told = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (version) => {
  protocol = version;
  told?.(version);
};

const client = new Client({ name: "typescript-client", version: "1.0.0" });
let changes = 0;
client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
  changes += 1;
});
await client.connect(transport);

const tools = [];
let cursor;
do {
  const page = await client.listTools(cursor === undefined ? {} : { cursor });
  tools.push(...page.tools);
  cursor = page.nextCursor;
} while (cursor !== undefined);

const calls = [];
const progress = [];
for (const { name, arguments: given } of JSON.parse(options.calls)) {
  let seen = 0;
  const onprogress = () => {
    seen += 1;
  };
  try {
    const params = given === undefined ? { name } : { name, arguments: given };
    calls.push({ result: await client.callTool(params, CallToolResultSchema, { onprogress }) });
  } catch (error) {
    const { code, message, data } = error;
    calls.push({ error: { code, message, data } });
  }
  progress.push(seen);
}

const surface = {};
if (options.surface !== undefined) {
  const { gets = [], reads = [] } = JSON.parse(options.surface);
  Object.assign(surface, await client.listPrompts(), await client.listResources(), await client.listResourceTemplates());
  surface.gets = [];
  for (const name of gets) surface.gets.push(await client.getPrompt({ name }));
  surface.reads = [];
  for (const uri of reads) surface.reads.push(await client.readResource({ uri }));
}

const report = {
  ...surface,
  protocol,
  server: client.getServerVersion(),
  instructions: client.getInstructions() ?? null,
  tools,
  calls,
  progress,
  changes,
};
process.stdout.write(`${JSON.stringify(report)}\n`);
await client.close();
