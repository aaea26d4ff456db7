/** Links from calls to the tracing system of the configuration. */

import { get } from "./api.js";
import { h, put } from "./dom.js";

let address;

/** A link to a trace, which appears if the configuration names a tracing system; null without a trace. */
export function traceLink(id) {
  if (!id) return null;
  const place = h("span", { hidden: true });
  address ??= get("config").then((config) => config.traceUrl ?? null, () => null);
  address.then((url) => {
    if (!url) return;
    place.hidden = false;
    put(place, h("a", { class: "button", href: url.replaceAll("{traceId}", encodeURIComponent(id)), target: "_blank", rel: "noopener noreferrer" }, "Trace", h("span", { class: "hidden" }, ` ${id} (opens another site)`)));
  });
  return place;
}
