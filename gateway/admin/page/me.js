/** The page of callers: their tools, sign-ins, calls, and how to connect a host. The key or token stays in this tab. */

import { foreign, h, put, say } from "./dom.js";
import { HOSTS, PLACEHOLDER } from "./hosts.js";
import { badge, button, empty, facts, field, list, load, milliseconds, plural, section, select, time } from "./parts.js";
import { code } from "./result.js";
import { theme } from "./theme.js";

const app = document.getElementById("app");
// Timeout of requests: a sign-in may wait for the server's authorization server.
const ANSWER_MS = 60000;
let key = "";
// Whether the provider gave the token: hosts then sign in by themselves, instead of with a key.
let isProvided = false;

async function ask(method, path, body, credentials = "omit") {
  const headers = { accept: "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}), ...(body ? { "content-type": "application/json" } : {}) };
  let answer;
  let found;
  try {
    answer = await fetch(new URL(`me/${path}`, document.baseURI), { method, headers, body: body && JSON.stringify(body), cache: "no-store", credentials, signal: AbortSignal.timeout(ANSWER_MS) });
    found = await answer.json();
  } catch {
    throw new Error("the gateway does not answer");
  }
  if (answer.ok) return found;
  const error = new Error(found.error ?? `the gateway does not answer (${answer.status})`);
  error.status = answer.status;
  throw error;
}

const brand = () => h("p", { class: "brand" }, h("img", { src: "me/page/icon.svg", alt: "", width: "40", height: "40" }), "typegate");

async function signInView(note) {
  key = "";
  isProvided = false;
  const { providers } = await ask("GET", "provider").catch(() => ({ providers: [] }));
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  const told = h("p", { class: "problem", role: "alert", hidden: !note }, note ?? "");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const ways = providers.map(({ issuer, name }) => button(`Sign in with ${name}`, async () => {
    try {
      // The cookie lets the sign-in continue in this browser only.
      location.assign((await ask("POST", "provider", { issuer }, "same-origin")).url);
    } catch (error) {
      told.hidden = false;
      told.textContent = error.message;
    }
  }, { kind: "primary" }));
  const form = h("form", { class: "stack" },
    field("API key or access token", input, "The one that your host uses. It is not stored: it stays in this tab."),
    ways.length ? null : told,
    problem,
    h("button", { type: "submit", class: ways.length ? "button" : "button primary" }, "Show my tools"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    key = input.value.trim();
    isProvided = false;
    try {
      show(await ask("GET", "state"));
    } catch (error) {
      key = "";
      told.hidden = true;
      problem.hidden = false;
      problem.textContent = error.status === 401 ? "This is not a valid key or token of this gateway." : error.message;
      input.select();
    }
  });
  put(app, h("main", { id: "main", class: "alone", tabindex: "-1" }, brand(), h("h1", null, "My tools"),
    ways.length ? h("div", { class: "card stack" }, told, ways, h("p", { class: "muted" }, "Or enter the key or token of your host.")) : null,
    h("div", { class: "card" }, form)));
  (ways[0] ?? input).focus();
}

function show(first) {
  const place = h("div", { class: "room" });
  const heading = h("h1", { tabindex: "-1" }, "My tools");
  const parts = ["servers", "tools", "calls", "host"].map(() => h("div"));
  let profile = first.profile;
  const draw = async (found) => {
    try {
      found ??= await ask("GET", `state?${new URLSearchParams({ profile })}`);
    } catch (error) {
      if (error.status !== 401) throw error;
      // The key was revoked, or the token has expired.
      await signInView(`You are signed out: ${error.message}`);
      return;
    }
    const views = [signIns, tools, calls, connect];
    parts.forEach((part, index) => load(part, async () => found, (shown) => views[index](shown, draw)));
  };
  const profiles = select(first.profiles.map((one) => [one.name, one.name]), profile);
  profiles.addEventListener("change", () => {
    profile = profiles.value;
    draw().catch((error) => say(error.message, "error"));
  });
  put(place,
    section("Who you are", facts([["Name", foreign(first.name)], ["Groups", first.groups.join(", ")], ["May use", first.scopes.join(", ") || "everything that rules allow"]]),
      h("div", { class: "bar" }, first.profiles.length > 1 ? field("Profile", profiles) : null,
        h("div", { class: "actions" }, button("Refresh", () => draw()), first.needsKey ? button("Sign out", () => signInView("You are signed out."), { kind: "quiet" }) : null))),
    parts);
  put(app, h("main", { id: "main", class: "own", tabindex: "-1" }, brand(), h("div", { class: "room-head" }, heading), place));
  draw(first);
  heading.focus({ preventScroll: true });
}

function signIns({ servers }, draw) {
  if (!servers.length) return [];
  return section("Sign-ins", h("p", { class: "muted" }, "Calls of these servers use your own account there."),
    h("ul", { class: "findings" }, servers.map((row) => h("li", null, badge(row.signedIn ? "ok" : "signInNeeded", row.signedIn ? "Signed in" : undefined),
      h("div", { class: "finding" }, foreign(row.displayName, "strong"), row.since ? h("p", { class: "muted" }, "since ", time(row.since * 1000)) : null),
      row.signedIn ? button("Sign out", async () => {
        await ask("DELETE", `sign-in?${new URLSearchParams({ server: row.name })}`);
        say(`You are signed out of ${row.displayName}`);
        await draw();
      }, { "aria-label": `Sign out of ${row.displayName}` }) : button("Sign in", async () => {
        // Opened before the answer arrives, because browsers block windows that are opened later.
        const opened = window.open("", "_blank");
        try {
          const { url } = await ask("POST", "sign-in", { server: row.name });
          if (opened) {
            opened.opener = null;
            opened.location = url;
          } else location.assign(url);
          say("Continue in the new window, then refresh this page");
        } catch (error) {
          opened?.close();
          throw error;
        }
      }, { kind: "primary", "aria-label": `Sign in to ${row.displayName}` })))));
}

const DECISIONS = { allow: ["allow"], ask: ["ask"], depends: ["ask", "Depends on the arguments"], deny: ["deny"] };

function tools({ tools: rows }) {
  return section("Tools", list({
    caption: "Tools", titled: true, rows, key: (row) => row.name, search: (row) => [row.name, row.server, row.description],
    group: { label: "Group by server", of: (row) => row.server },
    none: () => empty("There are no tools for you", "Ask the operator of this gateway."),
    columns: [
      { title: "Tool", cell: (row) => h("div", { class: "described" }, foreign(row.name, "code"), row.description ? foreign(row.description, "p") : null) },
      { title: "Server", cell: (row) => h("span", { class: "nowrap" }, foreign(row.server)) },
      { title: "Calls", beside: true, cell: (row) => badge(...DECISIONS[row.decision]) },
      { title: "In your host", cell: (row) => (row.listed ? "listed" : "found by search") },
    ],
  }).node);
}

const REASONS = { policy: "Refused by a rule", asked: "Waiting for approval", denied: "Denied by a person", expired: "Not decided in time", arguments: "Wrong arguments", unknown_tool: "No such tool" };

function ending(row) {
  const outcome = row.outcome ?? {};
  if (row.hook || ["policy", "asked", "denied", "expired"].includes(row.reason)) return badge("denied", REASONS[row.reason]);
  if (outcome.tool && outcome.tool !== "error") return badge("ok");
  return badge("error", REASONS[row.reason] ?? (outcome.tool === "error" ? "The tool reports an error" : undefined));
}

function calls({ calls: rows, isRecorded, lastDay }) {
  if (!isRecorded) return section("Calls", h("p", null, "This gateway does not record calls."));
  if (!rows) return section("Calls", h("p", { class: "problem" }, "Your calls cannot be read at present."));
  return section("Calls",
    h("p", { class: "muted" }, lastDay.calls ? `${plural(lastDay.calls, "call")} in 24 hours, ${lastDay.errors} failed, ${lastDay.denied} refused, p95 ${milliseconds(lastDay.p95Ms)}.` : "No calls in 24 hours."),
    rows.length ? list({
      caption: "Latest first", rows, plain: true, search: (row) => [row.wrapper ?? row.name ?? "", row.server ?? ""],
      columns: [
        { title: "Tool", cell: (row) => foreign(String(row.wrapper ?? row.name ?? ""), "code") },
        { title: "Result", beside: true, cell: ending },
        { title: "When", cell: (row) => time(row.time) },
        { title: "Duration", number: true, cell: (row) => milliseconds(row.ms) },
      ],
    }).node : empty("No calls yet", "Your calls and their errors appear here."));
}

function connect({ profiles, profile, needsKey: isRequired }) {
  const needsKey = isRequired && !isProvided;
  const host = select(Object.entries(HOSTS).map(([name, [text]]) => [name, text]), "claude-code");
  const shown = h("div", { "aria-live": "polite", class: "stack wide" });
  const url = new URL(profiles.find((one) => one.name === profile).path.slice(1), document.baseURI).href;
  const draw = () => {
    const [text, where, make] = HOSTS[host.value];
    put(shown, h("h3", null, text), h("p", null, where), code(make(url, needsKey ? PLACEHOLDER : "")));
  };
  host.addEventListener("change", draw);
  draw();
  return section("Connect a host", field("Host", host), shown, needsKey ? h("p", { class: "muted" }, "Replace ", h("code", null, PLACEHOLDER), " with your key.")
    : isRequired ? h("p", { class: "muted" }, "Your host opens the browser to sign you in.") : null);
}

/** Fetch the token after a sign-in with a provider; returns why there is none. */
async function fetchToken() {
  const ticket = /^#signed-in=([\w-]+)$/.exec(location.hash)?.[1];
  if (!ticket) return null;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    key = (await ask("POST", "provider/token", { ticket }, "same-origin")).token;
    isProvided = true;
    return null;
  } catch (error) {
    return error.message;
  }
}

async function begin() {
  theme();
  const failure = await fetchToken();
  try {
    show(await ask("GET", "state"));
  } catch (error) {
    const refused = isProvided ? `You are signed in, but this gateway does not accept the token: ${error.message}` : null;
    await signInView(failure ?? refused ?? (error.status === 401 ? null : error.message));
  }
}

begin();
