/** The live event stream of the gateway, which replaces polling. */

import { eventsUrl } from "./api.js";

const GATHER_MS = 300;
const MAX_LATEST = 500;

const listeners = new Set();
let source = null;
let waiting = [];
let timer = 0;

export const live = { on: false, latest: [] };

function publish(events) {
  for (const event of events) {
    if (event.event !== "catalog" && event.event !== "state" && event.event !== "link") live.latest.unshift(event);
  }
  live.latest.length = Math.min(live.latest.length, MAX_LATEST);
  waiting.push(...events);
  if (timer) return;
  timer = setTimeout(() => {
    const now = waiting;
    waiting = [];
    timer = 0;
    for (const listener of [...listeners]) listener(now);
  }, GATHER_MS);
}

/** Open the stream. After a reconnect, a "resync" event makes the listeners fetch their data again. */
export function start() {
  stop();
  const opened = new EventSource(eventsUrl());
  source = opened;
  source.onopen = () => {
    const again = live.on === false;
    live.on = true;
    publish([{ event: "link" }, ...(again ? [{ event: "resync" }] : [])]);
  };
  source.onerror = () => {
    live.on = false;
    publish([{ event: "link" }]);
    // An EventSource does not reconnect after an HTTP error: check the session first, then open a new stream.
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => source === opened && publish([{ event: "closed" }]), 1000);
  };
  source.onmessage = (message) => {
    const events = JSON.parse(message.data);
    if (Array.isArray(events)) publish(events);
  };
}

export function stop() {
  source?.close();
  source = null;
  live.on = false;
}

/** Call back with the events of these kinds until the signal is aborted. */
export function listen(kinds, signal, callback) {
  const wanted = new Set([...kinds, "resync"]);
  const listener = (events) => {
    const found = events.filter((event) => wanted.has(event.event));
    if (found.length) callback(found);
  };
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener));
}
