/** Our entry written into the file of a host on this machine: shown as a difference first, and taken back to the byte. */

import { at, post, remove } from "./api.js";
import { diffView, unifiedLines } from "./difference.js";
import { foreign, h, put, say } from "./dom.js";
import { badge, button, confirm, problemText, section } from "./parts.js";

/**
 * What can be done about one host's file.
 *
 * wanted: returns the profile and the key that the host is to have; missing: returns what has to be given first.
 */
export function writing(file, machine, wanted, missing) {
  const place = h("div", { class: "stack wide" });
  const state = { ...file };
  const draw = () => put(place, state.written ? there(state, draw) : absent(state, machine, wanted, missing, draw));
  draw();
  return section("Or have it written", place);
}

function absent(state, machine, wanted, missing, draw) {
  const keep = h("input", { type: "checkbox" });
  const shown = h("div", { "aria-live": "polite", class: "stack wide" });
  keep.addEventListener("change", () => put(shown));
  return [
    h("p", null, "typegate puts its entry into ", foreign(state.file, "code"), ` on ${machine}, the machine of the gateway. How the file is now is kept, and can be restored.`),
    h("div", { class: "choice" }, h("label", null, keep, "Leave servers in it that the gateway has too")),
    h("div", { class: "actions" }, button("Show what would change", async () => {
      const problem = missing();
      if (problem) return put(shown, problemText(problem));
      const body = { ...wanted(), keep: keep.checked };
      const plan = await post(at`hosts/${state.name}/preview`, body);
      return put(shown, planned(plan, state, body, draw));
    })),
    shown,
  ];
}

function planned(plan, state, body, draw) {
  if (!plan.needed) return h("p", null, badge("ok", "The gateway is in this file already"));
  return [
    diffView(unifiedLines(plan.difference), `Difference of ${state.file}`),
    plan.replaces.length ? h("p", null, "It takes the place of ", foreign(plan.replaces.join(", "), "strong"), ", which the gateway has too.") : null,
    plan.stays.length ? h("p", { class: "muted" }, "These servers stay beside it: ", foreign(plan.stays.join(", ")), ".") : null,
    h("div", { class: "actions" }, button("Write it", async () => {
      await post(at`hosts/${state.name}`, body, { "if-match": plan.tag });
      Object.assign(state, { written: true, changedSince: false, exists: true });
      say(`${state.title} has the gateway in its file; start it again`);
      draw();
    }, { kind: "primary" })),
  ];
}

function there(state, draw) {
  const restore = async (force) => {
    const { done } = await remove(at`hosts/${state.name}` + (force ? "?force=true" : ""));
    Object.assign(state, { written: false, changedSince: null });
    say(`${state.file}: ${done}`);
    draw();
  };
  return [
    h("p", { class: "state-line" }, badge("ok", "Written"), foreign(state.file, "code")),
    h("p", null, state.changedSince ? "Somebody has changed the file since. Our entry alone can be taken out; the rest stays as it is now." : `Start ${state.title} again, and its first call appears under Activity.`),
    h("div", { class: "actions" }, state.changedSince
      ? button("Take our entry out", () => restore(true))
      : button("Restore the file as it was", async () => {
        if (await confirm(`Restore the file of ${state.title}?`, "It becomes what it was before the gateway was written into it, to the byte.", "Restore")) await restore(false);
      })),
  ];
}
