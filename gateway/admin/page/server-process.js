/** What a server's process prints, live, and the editor of its configuration entry. */

import { at, get, getTagged, post } from "./api.js";
import { foreign, h, put, say } from "./dom.js";
import { button, dialog, empty, field, load, problemText, section, time } from "./parts.js";

const POLL_MS = 2000;

/** The last lines of standard error, fetched again while the room is open; scrolled to the end unless someone reads. */
export function renderLog(place, name, signal) {
  const lines = h("div");
  put(place, section("Standard error", h("p", { class: "muted" }, "The last 200 lines of each process, also of earlier ones. New lines appear as they are printed."), lines));
  const draw = () => {
    const box = lines.querySelector("pre");
    const follows = !box || box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
    return load(lines, () => get(at`servers/${name}/log`), ({ processes }) => (processes.some((one) => one.lines.length) ? processes.map(printed) : empty("Nothing was printed", "Lines appear here as soon as the process prints them."))).then(() => {
      const now = lines.querySelector("pre");
      if (now && follows) now.scrollTop = now.scrollHeight;
    });
  };
  draw();
  const poll = setInterval(() => document.visibilityState === "visible" && draw(), POLL_MS);
  signal.addEventListener("abort", () => clearInterval(poll));
}

function printed(one) {
  return h("div", null,
    h("p", { class: "muted" }, `Process ${one.pid ?? "not running"}`, one.caller ? [" of ", foreign(one.caller)] : null),
    h("pre", { class: "code printed", tabindex: "0", role: "region", "aria-label": `Standard error of process ${one.pid ?? ""}` }, one.lines.map((line) => [h("span", { class: "muted" }, time(line.at * 1000)), " ", foreign(line.text, "span"), "\n"])));
}

/** Edit the entry of a server as JSON; the values of headers and variables are placeholders. */
export async function editServer(name) {
  const { document: found, etag } = await getTagged(at`servers/${name}/entry`);
  const saved = await dialog(`Edit ${name}`, (close) => {
    const text = h("textarea", { class: "code", rows: 16, spellcheck: "false", value: JSON.stringify(found.config, null, 2), autofocus: true });
    const problem = h("div", { "aria-live": "polite" });
    const form = h("form", { class: "stack wide", novalidate: true },
      field("Configuration", text, "The entry as in the configuration file. The value \"(not shown)\" keeps the current value; with another address it has to be entered again."),
      h("p", { class: "muted" }, "The change is stored in the overlay and applies at once; revert it under Settings."),
      problem,
      h("div", { class: "actions" }, h("button", { type: "submit", class: "button primary" }, "Save"), button("Cancel", () => close())));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await post(at`servers/${name}/entry`, { config: JSON.parse(text.value) }, { "if-match": etag });
        close(true);
      } catch (error) {
        put(problem, problemText(error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message));
        text.focus();
      }
    });
    return form;
  }, { wide: true });
  if (saved) say(`${name} is changed`);
}
