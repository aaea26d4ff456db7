// A minimal host of MCP Apps in a page: the host code of the package renders the app of a tool in a frame.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, getToolUiResourceUri, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const EXTENSION = "io.modelcontextprotocol/ui";
const INFO = { name: "page", version: "1.0.0" };
let client;
// Everything that the host sent, its own requests and those of apps, with the results.
window.sent = [];

window.connect = async (url, mode) => {
  const extensions = { [EXTENSION]: { mimeTypes: ["text/html;profile=mcp-app"] } };
  client = new Client(INFO, { capabilities: { extensions }, versionNegotiation: { mode } });
  const request = client.request.bind(client);
  client.request = async (message, ...rest) => {
    const result = await request(message, ...rest);
    window.sent.push({ ...message, result });
    return result;
  };
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const { tools } = await client.listTools();
  const { resources } = await client.listResources();
  return {
    version: client.getNegotiatedProtocolVersion?.() ?? null,
    resources: resources.map(({ uri, mimeType }) => ({ uri, mimeType })),
    tools: Object.fromEntries(tools.map((tool) => [tool.name, { uri: getToolUiResourceUri(tool), meta: tool._meta }])),
  };
};

window.render = async (name) => {
  const { tools } = await client.listTools();
  const uri = getToolUiResourceUri(tools.find((tool) => tool.name === name));
  const { contents } = await client.readResource({ uri });
  const frame = document.createElement("iframe");
  frame.id = name;
  frame.sandbox = "allow-scripts";
  document.body.append(frame);
  const bridge = new AppBridge(client, INFO, { serverTools: {}, serverResources: {} });
  const ready = new Promise((resolve) => {
    bridge.oninitialized = resolve;
  });
  // Listening before the frame has its document, because the app speaks first.
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = contents[0].text;
  await ready;
  const result = await client.callTool({ name, arguments: {} });
  await bridge.sendToolInput({ arguments: {} });
  await bridge.sendToolResult(result);
  return { uri, contents: contents.map(({ uri, mimeType }) => ({ uri, mimeType })), result };
};
