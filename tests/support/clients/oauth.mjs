// A host on the TypeScript SDK 1.x that knows nothing but an address: it is refused, finds the authorization server,
// registers, signs in (a browser whose user agrees at once), and calls. Prints a report as JSON.
import { parseArgs } from "node:util";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { values: options } = parseArgs({ options: { target: { type: "string" }, call: { type: "string" } } });
const callback = "http://127.0.0.1:9/callback";
const kept = {};
let code;

// A browser: it follows redirects and keeps cookies until it is sent back to the client.
async function browse(url) {
  const cookies = new Map();
  let at = url;
  for (let step = 0; step < 10 && !String(at).startsWith(callback); step += 1) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join("; ");
    const response = await fetch(at, { redirect: "manual", headers: { cookie } });
    for (const set of response.headers.getSetCookie()) {
      const [name, value] = set.split(";")[0].split(/=(.*)/s);
      cookies.set(name, value);
    }
    if (!response.headers.has("location")) throw new Error(`${response.status}: ${await response.text()}`);
    at = new URL(response.headers.get("location"), at);
  }
  return new URL(at);
}

const authProvider = {
  redirectUrl: callback,
  clientMetadata: {
    client_name: "a host",
    redirect_uris: [callback],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  redirectToAuthorization: async (url) => {
    kept.asked = Object.fromEntries(url.searchParams);
    code = (await browse(url)).searchParams.get("code");
  },
};

const connect = async () => {
  const transport = new StreamableHTTPClientTransport(new URL(options.target), { authProvider });
  const client = new Client({ name: "a host", version: "1.0.0" });
  try {
    await client.connect(transport);
  } catch (error) {
    if (!(error instanceof UnauthorizedError) || !code) throw error;
    await transport.finishAuth(code);
    code = undefined;
    return connect();
  }
  return client;
};
const client = await connect();
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const result = await client.callTool(JSON.parse(options.call));
await client.close();
console.log(JSON.stringify({ tools, result, asked: kept.asked, scope: kept.tokens.scope }));
