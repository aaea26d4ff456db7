/** Client of the admin API, using the session of this browser. */

const BASE = new URL("./", document.baseURI);
const UNKNOWN = "the gateway does not answer";
// Timeout of GET requests only: changes and tool calls may wait for a server or for an approval.
const READ_MS = 30000;

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The current session and the routes of the gateway. */
export const state = { session: null, paths: {}, onSignedOut: () => {} };

async function send(method, path, body, headers) {
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

async function request(method, path, body, headers = {}) {
  const session = state.session;
  const csrf = method === "GET" || !state.session?.csrf ? {} : { "x-csrf-token": state.session.csrf };
  try {
    return await send(method, path, body, { ...csrf, ...headers });
  } catch (error) {
    // Ignore a late 401 of an earlier session: a new sign-in may have succeeded since.
    if (error.status === 401 && state.session === session) state.onSignedOut();
    throw error;
  }
}

export const get = async (path) => (await request("GET", path)).document;
export const getTagged = (path) => request("GET", path);
export const post = async (path, body, headers) => (await request("POST", path, body ?? {}, headers)).document;
export const remove = async (path, headers) => (await request("DELETE", path, undefined, headers)).document;

/** POST a body, pass each message of the event stream to `onMessage`, and return the document at its end. */
export async function postStream(path, body, signal, onMessage) {
  const session = state.session;
  const headers = { accept: "text/event-stream", "content-type": "application/json", ...(session?.csrf ? { "x-csrf-token": session.csrf } : {}) };
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), { method: "POST", headers, body: JSON.stringify(body), signal, cache: "no-cache", credentials: "same-origin" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(0, UNKNOWN);
  }
  if (!answer.ok) {
    if (answer.status === 401 && state.session === session) state.onSignedOut();
    throw new ApiError(answer.status, (await answer.json().catch(() => null))?.error ?? `${UNKNOWN} (${answer.status})`);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError(0, "the connection to the gateway was lost");
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      const found = data ? JSON.parse(data.slice(6)) : {};
      if (found.message) onMessage(found.message);
      else if (data) return found;
    }
  }
}

/** Template tag for a path: escapes the inserted parts. */
export function at(strings, ...parts) {
  return strings.reduce((made, string, index) => made + encodeURIComponent(parts[index - 1]) + string);
}

/** Sign in with the admin token, or with the code of a sign-in link. */
export async function signIn(credentials) {
  state.session = (await send("POST", "session", {}, { authorization: `Bearer ${credentials}` })).document;
  await loadRoutes();
}

/** Resume the existing session of this browser; return false if there is none. */
export async function resume() {
  try {
    const [session] = await Promise.all([send("GET", "session"), loadRoutes()]);
    state.session = session.document;
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    throw error;
  }
}

export async function signOut() {
  await request("DELETE", "session");
  state.session = null;
}

async function loadRoutes() {
  const description = (await send("GET", "openapi.json")).document;
  state.paths = description.paths;
}

/** Return whether the gateway has this route. */
export function has(method, path) {
  return Boolean(state.paths[`/admin/${path}`]?.[method]);
}

const ROLES = ["viewer", "operator", "admin"];

/** Return whether the route exists and the role of this session may use it. */
export function may(method, path) {
  const operation = state.paths[`/admin/${path}`]?.[method];
  return Boolean(operation) && ROLES.indexOf(state.session?.role) >= ROLES.indexOf(operation["x-role"] ?? "operator");
}

export const eventsUrl = () => new URL("events", BASE);

/** Return the URL of a profile: the one that the gateway reports, or one relative to this page. */
export function gatewayUrl(profile) {
  const found = new URL(profile.url ?? `..${profile.path}`, BASE);
  // The gateway listens on all addresses: use the host name by which this browser has reached it.
  if (found.hostname === "0.0.0.0" || found.hostname === "[::]") found.hostname = location.hostname;
  return found.href;
}
