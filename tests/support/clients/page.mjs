// The TypeScript SDK 1.x in a page: bundled for browsers, `window.connectAndCall` lists and calls.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

window.connectAndCall = async (target, headers, calls, credentials) => {
  const requestInit = { headers, credentials };
  const transport = new StreamableHTTPClientTransport(new URL(target), { requestInit });
  const client = new Client({ name: "page", version: "1.0.0" });
  await client.connect(transport);
  const report = { session: transport.sessionId, tools: [], calls: [], progress: 0 };
  report.tools = (await client.listTools()).tools.map((tool) => tool.name);
  const onprogress = () => {
    report.progress += 1;
  };
  for (const call of calls) {
    report.calls.push(await client.callTool(call, CallToolResultSchema, { onprogress }));
  }
  await transport.terminateSession();
  await client.close();
  return report;
};
