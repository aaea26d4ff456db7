/** What happens, as the gateway streams it. Nothing is asked again and again. */

import { eventsUrl } from "./api.js";

const GATHER_MS = 300;
const KEPT = 500;

const listeners = new Set();
let source = null;
let waiting = [];
let timer = 0;

export const live = { on: false, latest: [] };

function tell(events) {
  for (const event of events) {
    if (event.event !== "catalog" && event.event !== "state" && event.event !== "link") live.latest.unshift(event);
  }
  live.latest.length = Math.min(live.latest.length, KEPT);
  waiting.push(...events);
  if (timer) return;
  timer = setTimeout(() => {
    const now = waiting;
    waiting = [];
    timer = 0;
    for (const listener of [...listeners]) listener(now);
  }, GATHER_MS);
}

/** Begin to listen; whatever was missed while away is fetched anew by whoever shows it. */
export function start() {
  stop();
  const opened = new EventSource(eventsUrl());
  source = opened;
  source.onopen = () => {
    const again = live.on === false;
    live.on = true;
    tell([{ event: "link" }, ...(again ? [{ event: "resync" }] : [])]);
  };
  source.onerror = () => {
    live.on = false;
    tell([{ event: "link" }]);
    // A refusal ends it for good; the session is looked at again, and then the stream.
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => source === opened && tell([{ event: "closed" }]), 1000);
  };
  source.onmessage = (message) => {
    const events = JSON.parse(message.data);
    if (Array.isArray(events)) tell(events);
  };
}

export function stop() {
  source?.close();
  source = null;
  live.on = false;
}

/** Call this with what happens of these kinds, until the signal is aborted. */
export function listen(kinds, signal, callback) {
  const wanted = new Set([...kinds, "resync"]);
  const listener = (events) => {
    const found = events.filter((event) => wanted.has(event.event));
    if (found.length) callback(found);
  };
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener));
}
