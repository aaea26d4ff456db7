/** The links to the rooms, each with an icon and an optional count. */

import { h, svg } from "./dom.js";

const SIGNS = {
  overview: "M4 4h7v9H4zM13 4h7v5h-7zM13 11h7v9h-7zM4 15h7v5H4z",
  servers: "M4 5h16v6H4zM4 13h16v6H4zM7.5 8h.01M7.5 16h.01",
  tools: "M9 4C5.500 4 8 12 4 12c4 0 1.500 8 5 8M15 4c3.500 0 1 8 5 8-4 0-1.500 8-5 8",
  try: "M7 5v14l11-7z",
  changes: "M7 4v8M3 8h8M13 17h8M19 5 6 20",
  activity: "M3 12h4l3-7 4 14 3-7h4",
  access: "M8 16a4 4 0 1 1 0-8 4 4 0 0 1 0 8zM12 12h9M17 12v4",
  connect: "M9 8V3M15 8V3M6 8h12v4a6 6 0 0 1-12 0zM12 18v3",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.500v5M9 14.500v5",
};
// The rooms that start a new group: first those for viewing, then decisions, then setup.
const APART = new Set(["changes", "connect"]);

export function links(rooms) {
  return h("ul", null, rooms.map(([name, text]) => h("li", { class: APART.has(name) ? "apart" : null }, h("a", { href: `#/${name}`, "data-room": name },
    svg("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": 1.75, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: SIGNS[name] })),
    text))));
}

/** Show a count next to a room; zero removes it. */
export function tally(nav, room, count, what) {
  const link = nav.querySelector(`[data-room="${room}"]`);
  link.querySelector(".tally")?.remove();
  if (count) link.append(h("span", { class: "tally" }, String(count), h("span", { class: "hidden" }, ` ${what}`)));
}
