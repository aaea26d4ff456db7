/** Creation of elements. Texts always become text nodes, because many of them come from upstreams. */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked" || name === "selected" || name === "disabled" || name === "indeterminate") element[name] = Boolean(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Create an HTML element with attributes and children. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element with attributes and children. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace the content of an element. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

let numbers = 0;

/** Return a unique element id. */
export function freshId(word) {
  numbers += 1;
  return `${word}-${numbers}`;
}

/** An upstream's text, isolated in its text direction and allowed to break anywhere. */
export function foreign(text, tag = "bdi") {
  return h(tag, { class: "foreign" }, text);
}

let clearing = 0;

/** Show a message for a few seconds, and announce it to screen readers. */
export function say(text, kind = "note") {
  const place = document.getElementById("said");
  put(place, h("p", { class: kind === "error" ? "said-error" : null }, kind === "error" ? h("span", { "aria-hidden": "true" }, "▲ ") : null, text));
  clearTimeout(clearing);
  clearing = setTimeout(() => place.replaceChildren(), kind === "error" ? 12000 : 5000);
}

/** Copy a text to the clipboard, and confirm it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    say("The browser did not allow copying. Select the text instead.", "error");
  }
}
