/** The result of a tool call. Nothing in it is fetched or executed. */

import { copy, foreign, h, put } from "./dom.js";
import { badge, button, bytes, milliseconds, plural } from "./parts.js";

const PICTURES = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;
const SOUNDS = /^audio\/[\w.+-]+$/;
const MAX_TEXT = 200000;
const MAX_CHILDREN = 200;
const WEB = /^https?:\/\//i;

/** The result of a trial request, with the JSON-RPC exchange on demand. */
export function exchange(found) {
  const error = found.response.error;
  const result = found.response.result;
  const failed = Boolean(error || result?.isError);
  const kind = result?.resultType && result.resultType !== "complete" ? result.resultType : null;
  const wrong = found.problems.length;
  return [
    h("div", { class: "result-head" },
      badge(failed ? "error" : kind ? "warned" : "ok", error ? `Refused with ${error.code}` : wrong ? `Not sent: ${plural(wrong, "argument is", "arguments are")} wrong` : failed ? "The tool reports an error" : kind === "input_required" ? "The server asks" : kind ? `Not finished: ${kind}` : "Answered"),
      h("span", { class: "muted" }, `${milliseconds(found.ms)} · ${bytes(found.bytes)}`)),
    error ? text(error.message) : null,
    result ? content(result) : null,
    found.messages.length ? h("details", null, h("summary", null, `Messages before the response (${found.messages.length})`), tree(found.messages)) : null,
    h("details", { class: "exchange" }, h("summary", null, "Exact JSON-RPC exchange"),
      h("h3", null, "Request"), code(found.request), h("h3", null, "Response"), code(found.response)),
  ];
}

function content(result) {
  const items = Array.isArray(result.content) ? result.content : [];
  const structured = result.structuredContent;
  // Most servers repeat structured content as text, for hosts that read only text.
  const twice = items.some((one) => one?.type === "text" && isSame(one.text, structured));
  return [
    items.map(item),
    structured === undefined ? null : twice
      ? h("details", null, h("summary", null, "Structured content (the same)"), tree(structured))
      : h("div", null, h("h3", null, "Structured content"), tree(structured)),
    result._meta?.["typegate/repairs"] ? h("div", { class: "note" }, h("h3", null, "Repaired before it was sent"), tree(result._meta["typegate/repairs"])) : null,
    Array.isArray(result.messages) ? result.messages.map((one) => h("div", { class: "text-item" }, h("h3", null, one.role === "assistant" ? "Assistant" : "User"), item(one.content))) : null,
    Array.isArray(result.contents) ? result.contents.map((resource) => item({ type: "resource", resource })) : null,
  ];
}

function isSame(text, value) {
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(value);
  } catch {
    return false;
  }
}

function item(one) {
  switch (one?.type) {
    case "text":
      return text(String(one.text ?? ""));
    case "image":
      return picture(one.data, one.mimeType) ?? tree(one);
    case "audio":
      return SOUNDS.test(one.mimeType ?? "") ? h("audio", { controls: true, src: `data:${one.mimeType};base64,${one.data}` }) : tree(one);
    case "resource_link":
      return link(one);
    case "resource":
      return h("div", { class: "resource" }, h("p", null, "Resource ", foreign(String(one.resource?.uri ?? ""), "code")),
        one.resource?.text !== undefined ? text(String(one.resource.text)) : (picture(one.resource?.blob, one.resource?.mimeType) ?? tree(one.resource)));
    default:
      return tree(one);
  }
}

function picture(data, type) {
  if (!PICTURES.test(type ?? "") || typeof data !== "string") return null;
  return h("img", { class: "picture", alt: `Image of type ${type}`, src: `data:${type};base64,${data}` });
}

function link(one) {
  const uri = String(one.uri ?? "");
  const shown = foreign(uri, "code");
  return h("div", { class: "resource" }, h("p", null, "Link to ", foreign(String(one.title ?? one.name ?? "a resource"), "strong")),
    h("p", null, WEB.test(uri) ? h("a", { href: uri, rel: "noopener noreferrer nofollow", target: "_blank" }, shown, " (opens another site)") : shown),
    one.description ? foreign(String(one.description), "p") : null);
}

function text(whole) {
  const trimmed = whole.trimStart();
  if ((trimmed.startsWith("{") || trimmed.startsWith("[")) && whole.length <= MAX_TEXT) {
    try {
      const value = JSON.parse(whole);
      const place = h("div");
      let asTree = true;
      const draw = () => put(place, asTree ? tree(value) : foreign(whole, "pre"));
      draw();
      return h("div", { class: "text-item" }, place, button("As text", (made) => {
        asTree = !asTree;
        made.textContent = asTree ? "As text" : "As a tree";
        draw();
      }, { kind: "quiet" }));
    } catch {
      // Not JSON: shown as text.
    }
  }
  const cut = whole.length > MAX_TEXT;
  return h("div", { class: "text-item" }, foreign(cut ? whole.slice(0, MAX_TEXT) : whole, "pre"), cut ? h("p", { class: "muted" }, `${bytes(whole.length - MAX_TEXT)} more are not shown`) : null);
}

/** A value as a tree whose branches are drawn when they are opened. */
export function tree(value, name = null, open = true) {
  if (value === null || typeof value !== "object") {
    return h("div", { class: "leaf" }, name === null ? null : [foreign(name, "span"), ": "], foreign(JSON.stringify(value), "code"));
  }
  const entries = Object.entries(value);
  const many = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) return h("div", { class: "leaf" }, name === null ? null : [foreign(name, "span"), ": "], h("code", null, Array.isArray(value) ? "[]" : "{}"));
  const place = h("div", { class: "branches" });
  const draw = (from = 0) => {
    place.querySelector(":scope > .more")?.remove();
    for (const [key, one] of entries.slice(from, from + MAX_CHILDREN)) place.append(tree(one, key, entries.length <= 12 && name === null));
    if (entries.length > from + MAX_CHILDREN) place.append(h("div", { class: "more" }, button(`${entries.length - from - MAX_CHILDREN} more`, () => draw(from + MAX_CHILDREN), { kind: "quiet" })));
  };
  const node = h("details", { class: "tree", open }, h("summary", null, name === null ? "" : foreign(name, "span"), " ", h("span", { class: "muted" }, many)), place);
  let drawn = open;
  if (open) draw();
  node.addEventListener("toggle", () => {
    if (node.open && !drawn) {
      drawn = true;
      draw();
    }
  });
  return node;
}

/** A box of JSON or text with a copy button. */
export function code(value) {
  const whole = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return h("div", { class: "code-box" }, h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "Code" }, foreign(whole.slice(0, MAX_TEXT), "code")), button("Copy", () => copy(whole), { kind: "quiet" }));
}
