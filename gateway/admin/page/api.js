/** The admin API, with the session of this browser. */

const BASE = new URL("./", document.baseURI);
const UNKNOWN = "the gateway does not answer";
// What only reads is answered at once; what changes something, or calls a tool, may wait for a server or a person.
const READ_MS = 30000;

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** What the server has told of this session, and of its own routes. */
export const state = { session: null, paths: {}, onSignedOut: () => {} };

async function sent(method, path, body, headers) {
  const sending = { method, headers: { accept: "application/json", ...headers }, cache: "no-cache", credentials: "same-origin" };
  if (method === "GET") sending.signal = AbortSignal.timeout(READ_MS);
  if (body !== undefined) {
    sending.body = JSON.stringify(body);
    sending.headers["content-type"] = "application/json";
  }
  let answer;
  let text;
  try {
    answer = await fetch(new URL(path, BASE), sending);
    text = await answer.text();
  } catch {
    throw new ApiError(0, UNKNOWN);
  }
  let document = null;
  try {
    document = text ? JSON.parse(text) : null;
  } catch {
    document = null;
  }
  if (!answer.ok) throw new ApiError(answer.status, document?.error ?? `${UNKNOWN} (${answer.status})`);
  return { document, etag: answer.headers.get("etag") };
}

async function ask(method, path, body, headers = {}) {
  const session = state.session;
  const csrf = method === "GET" || !state.session?.csrf ? {} : { "x-csrf-token": state.session.csrf };
  try {
    return await sent(method, path, body, { ...csrf, ...headers });
  } catch (error) {
    // A refusal that comes late is about the session before: somebody may have signed in again since.
    if (error.status === 401 && state.session === session) state.onSignedOut();
    throw error;
  }
}

export const get = async (path) => (await ask("GET", path)).document;
export const getTagged = (path) => ask("GET", path);
export const post = async (path, body, headers) => (await ask("POST", path, body ?? {}, headers)).document;
export const remove = async (path, headers) => (await ask("DELETE", path, undefined, headers)).document;

/** A path with its parts escaped. */
export function at(strings, ...parts) {
  return strings.reduce((made, string, index) => made + encodeURIComponent(parts[index - 1]) + string);
}

/** Sign in with the token, or with what a link holds. */
export async function signIn(credentials) {
  state.session = (await sent("POST", "session", {}, { authorization: `Bearer ${credentials}` })).document;
  await learn();
}

/** Take up the session that the browser has already; false where there is none. */
export async function resume() {
  try {
    const [session] = await Promise.all([sent("GET", "session"), learn()]);
    state.session = session.document;
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    throw error;
  }
}

export async function signOut() {
  await ask("DELETE", "session");
  state.session = null;
}

async function learn() {
  const description = (await sent("GET", "openapi.json")).document;
  state.paths = description.paths;
}

/** Whether the gateway has such a route. */
export function has(method, path) {
  return Boolean(state.paths[`/admin/${path}`]?.[method]);
}

const ROLES = ["viewer", "operator", "admin"];

/** Whether this session may use a route: it exists, and its role is enough. */
export function may(method, path) {
  const operation = state.paths[`/admin/${path}`]?.[method];
  return Boolean(operation) && ROLES.indexOf(state.session?.role) >= ROLES.indexOf(operation["x-role"] ?? "operator");
}

export const eventsUrl = () => new URL("events", BASE);

/** Where a profile is served: as the gateway says, or beside this page. */
export function gatewayUrl(profile) {
  const found = new URL(profile.url ?? `..${profile.path}`, BASE);
  // It listens to every address; the one that this browser has found is as good as any.
  if (found.hostname === "0.0.0.0" || found.hostname === "[::]") found.hostname = location.hostname;
  return found.href;
}
