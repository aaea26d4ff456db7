/** Line-by-line differences of texts. */

import { foreign, h } from "./dom.js";

/** Render lines given as pairs of a sign ("+", "-" or " ") and a text. */
export function diffView(lines, label) {
  return h("div", { class: "diff", role: "list", tabindex: "0", "aria-label": label }, lines.map(([sign, text]) => h("div", { role: "listitem", class: sign === "+" ? "added" : sign === "-" ? "removed" : "same" },
    h("span", { class: "sign", "aria-hidden": "true" }, sign), sign === " " ? null : h("span", { class: "hidden" }, sign === "+" ? "now: " : "before: "), foreign(text, "code"))));
}

const MAX_LINES = 600;

/** Compute a difference by the longest common subsequence, with three lines of context around each change. */
export function changedLines(before, after) {
  if (before.length > MAX_LINES || after.length > MAX_LINES) return [...before.map((line) => ["-", line]), ...after.map((line) => ["+", line])].slice(0, MAX_LINES);
  const table = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) table[i][j] = before[i] === after[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  }
  const made = [];
  let i = 0;
  let j = 0;
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      made.push([" ", before[i]]);
      i += 1;
      j += 1;
    } else if (j >= after.length || (i < before.length && table[i + 1][j] >= table[i][j + 1])) made.push(["-", before[i++]]);
    else made.push(["+", after[j++]]);
  }
  const near = made.map((_, index) => made.slice(Math.max(0, index - 3), index + 4).some((line) => line[0] !== " "));
  return made.filter((_, index) => near[index]);
}
