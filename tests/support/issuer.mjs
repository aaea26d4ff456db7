// A real authorization server on a free loopback port: oidc-provider, with consent that is given at once.
// See `issuer.py` for its settings and for what it can be told while it runs.
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import Provider, { interactionPolicy } from "oidc-provider";

const settings = JSON.parse(process.argv[2]);
const state = { account: settings.account, groups: settings.groups, fail: {}, delay: {} };
const requests = [];
const grants = [];
const subjects = [];
let issuer;
let current;
let keys = [];

function newKeys() {
  const rsa = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" });
  const ec = generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ format: "jwk" });
  return [
    { ...rsa, kid: randomUUID(), use: "sig", alg: "RS256" },
    { ...ec, kid: randomUUID(), use: "sig", alg: "ES256" },
  ];
}

function settingsOf(resource) {
  return {
    scope: settings.scopes.join(" "),
    audience: resource,
    accessTokenFormat: settings.opaque ? "opaque" : "jwt",
    accessTokenTTL: settings.accessTokenSeconds,
    jwt: settings.opaque ? undefined : { sign: { alg: settings.algorithm } },
  };
}

function provide() {
  const policy = interactionPolicy.base();
  // Asked for it is, but nothing makes it necessary: whoever has logged in has agreed to everything.
  policy.get("consent").checks.clear();
  const made = new Provider(issuer, {
    clients: settings.clients,
    clientAuthMethods: ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"],
    cookies: { keys: ["a key of the test"] },
    extraTokenClaims: () => ({ groups: state.groups }),
    features: {
      clientCredentials: { enabled: true },
      clientIdMetadataDocument: { enabled: true, ack: "draft-02" },
      devInteractions: { enabled: false },
      introspection: { enabled: true, allowedPolicy: () => true },
      registration: { enabled: settings.registration },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource) => settingsOf(resource),
      },
      revocation: { enabled: true, allowedPolicy: () => true },
      rpInitiatedLogout: { enabled: false },
    },
    // Documents that describe clients are given to the test's server, so that none is fetched from anywhere.
    fetch: async (url) => {
      const found = settings.documents[String(url)];
      return found ? Response.json(found) : new Response("", { status: 404 });
    },
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, groups: state.groups }) }),
    interactions: { policy, url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    issueRefreshToken: (ctx, client) => client.grantTypeAllowed("refresh_token"),
    jwks: { keys },
    loadExistingGrant: async (ctx) => {
      const { client, session, params } = ctx.oidc;
      const grant = new ctx.oidc.provider.Grant({ clientId: client.clientId, accountId: session.accountId });
      grant.addOIDCScope(String(params.scope ?? ""));
      for (const resource of [params.resource ?? []].flat()) {
        grant.addResourceScope(resource, String(params.scope ?? settings.scopes.join(" ")));
      }
      await grant.save();
      return grant;
    },
    pkce: { required: () => true },
    rotateRefreshToken: settings.rotateRefreshTokens,
    scopes: ["openid", "offline_access", ...settings.scopes],
    ttl: {
      AccessToken: settings.accessTokenSeconds,
      ClientCredentials: settings.accessTokenSeconds,
      RefreshToken: settings.refreshTokenSeconds,
      AuthorizationCode: 60,
      Grant: 3600,
      IdToken: 3600,
      Interaction: 600,
      Session: 3600,
    },
  });
  // A token of another issuer for one of ours (RFC 8693); whose it is is believed, since the other one is the test's too.
  const exchange = "urn:ietf:params:oauth:grant-type:token-exchange";
  const exchanged = async (ctx) => {
    const { provider, client, params } = ctx.oidc;
    const { sub } = JSON.parse(Buffer.from(String(params.subject_token).split(".")[1], "base64url"));
    const grant = new provider.Grant({ clientId: client.clientId, accountId: sub });
    grant.addResourceScope(params.resource, String(params.scope));
    const { audience, scope, ...server } = await settingsOf(params.resource);
    const token = new provider.AccessToken({ accountId: sub, client, grantId: await grant.save(), scope: params.scope });
    token.resourceServer = new provider.ResourceServer(params.resource, { audience, scope, ...server });
    subjects.push(params.subject_token);
    ctx.body = {
      access_token: await token.save(),
      issued_token_type: "urn:ietf:params:oauth:token-type:access_token",
      expires_in: token.expiration,
      token_type: "Bearer",
    };
  };
  const parameters = ["subject_token", "subject_token_type", "requested_token_type", "audience", "resource", "scope"];
  made.registerGrantType(exchange, exchanged, parameters, ["resource"]);
  const note = (ok) => (ctx, error) => {
    const { grant_type, resource, scope } = ctx.oidc.params ?? {};
    const client = ctx.oidc.client?.clientId ?? null;
    grants.push({ ok, grant_type, resource, scope, client, error: error?.error ?? null });
  };
  made.on("grant.success", note(true));
  made.on("grant.error", note(false));
  made.on("server_error", (ctx, error) => console.error(error));
  return made;
}

async function interact(request, response) {
  const { prompt } = await current.interactionDetails(request, response);
  const result = prompt.name === "login" ? { login: { accountId: state.account } } : { consent: {} };
  await current.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

async function control(request, response) {
  let text = "";
  for await (const chunk of request) text += chunk;
  const { rotate, ...told } = text ? JSON.parse(text) : {};
  Object.assign(state, told);
  if (rotate) {
    // The new keys come first and are signed with; `keep` leaves the old ones published beside them.
    keys = [...newKeys(), ...(rotate === "keep" ? keys : [])];
    current = provide();
  }
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify({ ...state, requests, grants, subjects }));
}

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, issuer);
  try {
    if (pathname === "/control") return await control(request, response);
    requests.push(`${request.method} ${pathname}`);
    if (state.delay[pathname]) await new Promise((done) => setTimeout(done, 1000 * state.delay[pathname]));
    if (state.fail[pathname]) {
      response.statusCode = state.fail[pathname];
      return response.end();
    }
    if (pathname.startsWith("/interaction/")) return await interact(request, response);
    return current.callback()(request, response);
  } catch (error) {
    console.error(error);
    response.statusCode = 500;
    return response.end();
  }
});
server.listen(settings.port, "127.0.0.1", () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  keys = newKeys();
  current = provide();
  console.log(JSON.stringify({ issuer }));
});
