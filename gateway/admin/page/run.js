/** One trial request: its progress, its result, the questions of its server, and the requests before it. */

import { at, post, postStream } from "./api.js";
import { copy, foreign, h, put } from "./dom.js";
import { argumentsForm } from "./form.js";
import { badge, button, empty, field, milliseconds, problemText, section, select, time } from "./parts.js";
import { exchange, tree } from "./result.js";

const MAX_EARLIER = 20;

/** The requests of this browser tab, latest first. They are gone when the page is reloaded. */
const earlier = [];

/**
 * A result panel. `run` sends a request; `urlOf` returns the address of a profile, for the command of a call, and `reuse`
 * opens the form of an earlier call.
 */
export function panel({ signal }, urlOf, reuse) {
  const answer = h("div", { class: "answer" });
  const status = h("div", { "aria-live": "polite" });
  const node = section("Result", status, answer);
  const past = h("div");
  let running = null;
  signal.addEventListener("abort", () => running?.abort());

  async function run(request, marks = () => {}) {
    running?.abort();
    const control = (running = new AbortController());
    const began = performance.now();
    const elapsed = h("span", { class: "muted" }, "0.0 s");
    const steps = h("div");
    const asked = h("div");
    let trial = "";
    const tick = setInterval(() => {
      elapsed.textContent = `${((performance.now() - began) / 1000).toFixed(1)} s`;
    }, 100);
    marks([]);
    put(answer);
    put(status, h("div", { class: "result-head" }, badge("connecting", "Running"), elapsed, button("Cancel", () => control.abort(), { kind: "danger" })), steps, asked);
    node.scrollIntoView({ block: "nearest" });
    const report = (message) => {
      const { progress, total, message: text, data } = message.params ?? {};
      if (message.method === "typegate/trial") trial = message.params.id;
      else if (message.method === "notifications/cancelled") asked.querySelector(`[data-question="${message.params.requestId}"]`)?.remove();
      else if (message.id !== undefined) asked.append(questionInCall(message, trial));
      if (message.method === "notifications/progress") {
        const bar = h("progress", { "aria-label": "Progress", max: total ?? null });
        if (total) bar.value = progress;
        put(steps, bar, h("p", { class: "muted" }, total ? `${progress} of ${total}` : String(progress), text ? [": ", foreign(text)] : null));
      } else if (data !== undefined) put(steps, foreign(typeof data === "string" ? data : JSON.stringify(data), "p"));
    };
    const messages = [];
    let found = null;
    try {
      found = await postStream("try", { ...request, asks: true }, control.signal, (message) => {
        if (message.method !== "typegate/trial") messages.push(message);
        report(message);
      });
      found.messages = messages;
      put(status);
      const [head, error, content, ...rest] = exchange(found);
      put(answer, head, error, content, questions(found, (answers) => run({ ...request, answers, state: found.response.result.requestState ?? null }, marks)), rest, commandButton(request, urlOf));
      marks(found.problems);
      if (!found.problems.length) node.scrollIntoView({ block: "nearest" });
    } catch (error) {
      const took = milliseconds(performance.now() - began);
      put(status);
      put(answer, error.name === "AbortError" ? h("p", { class: "note", role: "status" }, `Cancelled after ${took}`) : problemText(`${error.message} (after ${took})`));
    } finally {
      clearInterval(tick);
      if (running === control) running = null;
    }
    remember(request, found, performance.now() - began);
  }

  function remember(request, found, ms) {
    const result = found?.response.result;
    const state = found === null ? "denied" : found.response.error || result?.isError ? "error" : result?.resultType && result.resultType !== "complete" ? "warned" : "ok";
    earlier.unshift({ request, state, word: found === null ? "Cancelled or lost" : state === "warned" ? "Not finished" : undefined, ms, at: Date.now() });
    earlier.length = Math.min(earlier.length, MAX_EARLIER);
    drawPast();
  }

  function drawPast() {
    put(past, section("History", earlier.length ? h("ul", { class: "findings" }, earlier.map((one) => h("li", null,
      badge(one.state, one.word),
      h("div", { class: "finding" }, foreign(nameOf(one.request), "strong"), foreign(JSON.stringify(one.request.arguments ?? one.request.params ?? {}).slice(0, 200), "code"), h("p", { class: "muted" }, time(one.at), ` · ${milliseconds(one.ms)}`)),
      one.request.wrapper ? button("Use again", () => reuse(one.request), { "aria-label": `Use again: ${nameOf(one.request)}` }) : null))) : empty("No requests yet", "The requests of this tab appear here. They are not stored.")));
  }

  drawPast();
  return { node, past, run };
}

const nameOf = (request) => request.wrapper ?? request.params?.name ?? request.params?.uri ?? request.method;

/** The command that makes the same call. */
function commandOf({ wrapper, arguments: given, profile }, urlOf) {
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  return `typegate call ${quoted(wrapper)} ${quoted(JSON.stringify(given ?? {}))} --url ${quoted(urlOf(profile))}`;
}

const commandButton = (request, urlOf) => (request.wrapper ? h("div", { class: "actions" }, button("Copy as command", () => copy(commandOf(request, urlOf)), { kind: "quiet" })) : null);

/** A question of a server that waits for its answer during the call. */
function questionInCall({ id, method, params }, trial) {
  const part = question({ method, params });
  const problem = h("div");
  const form = h("form", {
    class: "stack", novalidate: true, "data-question": id,
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        const { answered } = await post(at`try/${trial}/answer`, { question: id, result: part.read() });
        if (!answered) throw new Error("The call has ended, or another answer was given");
        form.remove();
      } catch (error) {
        put(problem, problemText(error.message));
      }
    },
  }, h("h3", null, "The server asks"), part.node, problem, h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Send the answer")));
  return form;
}

/** What the server asks before it completes the request; `send` continues the request with the answers. */
function questions(found, send) {
  const asked = Object.entries(found.response.result?.inputRequests ?? {});
  if (!asked.length) return null;
  const parts = asked.map(([key, one]) => [key, question(one)]);
  const problem = h("div");
  return h("form", {
    class: "stack", novalidate: true,
    onsubmit: (event) => {
      event.preventDefault();
      try {
        send(Object.fromEntries(parts.map(([key, part]) => [key, part.read()])));
      } catch (error) {
        put(problem, problemText(error.message));
      }
    },
  }, parts.map(([, part]) => part.node), problem, h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Send the answer")));
}

function question({ method, params = {} }) {
  if (method === "elicitation/create") return elicitation(params);
  if (method === "sampling/createMessage") return sampling(params);
  if (method === "roots/list") {
    const roots = h("textarea", { rows: 3, placeholder: "file:///home/ann/project" });
    return {
      node: h("fieldset", null, h("legend", null, "It asks for your folders"), field("Addresses, one per line", roots)),
      read: () => ({ roots: roots.value.split("\n").map((uri) => uri.trim()).filter(Boolean).map((uri) => ({ uri })) }),
    };
  }
  const text = h("textarea", { class: "code", rows: 4, value: "{}" });
  return { node: h("fieldset", null, h("legend", null, foreign(method)), tree(params), field("Answer as JSON", text)), read: () => JSON.parse(text.value) };
}

function elicitation({ message, requestedSchema, url }) {
  const action = select([["accept", "Accept"], ["decline", "Decline"], ["cancel", "Cancel"]], "accept");
  const form = url ? null : argumentsForm(requestedSchema ?? { type: "object" });
  return {
    node: h("fieldset", null, h("legend", null, "It asks its user"), foreign(String(message ?? ""), "p"),
      url ? h("p", null, /^https?:\/\//i.test(url) ? h("a", { href: url, rel: "noopener noreferrer nofollow", target: "_blank" }, foreign(url, "code"), " (opens another site)") : foreign(url, "code")) : form.node,
      field("Decision", action)),
    read() {
      if (action.value !== "accept") return { action: action.value };
      const content = form?.read();
      if (form && content === undefined) throw new Error("The answer is not valid JSON");
      return { action: "accept", ...(form ? { content } : {}) };
    },
  };
}

function sampling(params) {
  const text = h("textarea", { rows: 5 });
  return {
    node: h("fieldset", null, h("legend", null, "It asks a model"),
      params.systemPrompt ? h("div", null, h("h3", null, "Instructions"), foreign(String(params.systemPrompt), "pre")) : null,
      h("h3", null, "Messages"), tree(params.messages ?? []),
      field("Answer of the model", text, "You answer in place of a model.")),
    read: () => ({ role: "assistant", content: { type: "text", text: text.value }, model: "person", stopReason: "endTurn" }),
  };
}
