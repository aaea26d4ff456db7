/** The frame of the page: sign-in, navigation between rooms, and the live status. */

import { get, has, resume, signIn, signOut, state } from "./api.js";
import { h, put, say } from "./dom.js";
import { listen, live, start, stop } from "./live.js";
import { links, tally } from "./navigation.js";
import { shortcuts, showPalette } from "./palette.js";
import { button, field } from "./parts.js";
import { theme } from "./theme.js";

const ROOMS = [
  ["overview", "Overview"],
  ["servers", "Servers"],
  ["tools", "Tools"],
  ["try", "Try it"],
  ["changes", "Changes"],
  ["activity", "Activity"],
  ["access", "Access"],
  ["connect", "Connect a host"],
  ["settings", "Settings"],
];

const app = document.getElementById("app");
let leaving = null;
let frame = null;
let framed = null;

function signInView(note) {
  stop();
  leaving?.abort();
  framed?.abort();
  frame = null;
  document.title = "Sign in · typegate";
  const token = h("input", { type: "password", autocomplete: "current-password", required: true, autofocus: true });
  const problem = h("p", { class: "problem", role: "alert", hidden: !note }, note ?? "");
  const form = h("form", null,
    field("Admin token", token, "Shown at the first start of the gateway, and stored in its state directory. It is not stored in this browser."),
    problem,
    h("button", { type: "submit", class: "button primary" }, "Sign in"),
    h("p", { class: "muted" }, "Or run ", h("code", null, "typegate admin"), " on the gateway's machine, which opens a link that signs this browser in."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn(token.value.trim());
      token.value = "";
      await enter();
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.status === 401 ? "This is not the admin token of this gateway." : error.message;
      token.select();
    }
  });
  put(app, h("main", { id: "main", class: "alone", tabindex: "-1" },
    h("h1", { class: "brand" }, h("img", { src: "page/icon.svg", alt: "", width: "40", height: "40" }), "typegate"),
    h("div", { class: "card" }, form)));
  token.focus();
}

function shell() {
  const status = h("span", { class: "live" });
  const showLive = () => put(status, h("span", { class: live.on ? "dot on" : "dot", "aria-hidden": "true" }), live.on ? "Live" : "Not connected");
  showLive();
  framed?.abort();
  framed = new AbortController();
  shortcuts(framed.signal, ROOMS);
  listen(["link", "closed"], framed.signal, async (events) => {
    showLive();
    const session = state.session;
    if (!events.some((event) => event.event === "closed") || !session) return;
    try {
      if (await resume()) start();
      // Skip if the sign-in form is already open, since a new form would discard the typed token.
      else if (state.session === session) state.onSignedOut();
    } catch {
      // The gateway is not reachable yet: retry, as an EventSource would.
      setTimeout(() => state.session && start(), 2000);
    }
  });
  const nav = h("nav", { "aria-label": "Rooms", id: "rooms" }, links(ROOMS));
  const count = async () => {
    const changes = has("get", "changes") ? get("changes?status=held") : { changes: [] };
    const [{ approvals }, held] = await Promise.all([get("approvals?status=waiting"), changes]);
    tally(nav, "changes", approvals.length + held.changes.length, "waiting for a decision");
  };
  count().catch(() => {});
  listen(["approval", "catalog", "changed", "state"], framed.signal, () => count().catch(() => {}));
  const menu = h("button", { type: "button", class: "button menu", "aria-expanded": "false", "aria-controls": "rooms" }, "Menu");
  menu.addEventListener("click", () => {
    const open = menu.getAttribute("aria-expanded") !== "true";
    menu.setAttribute("aria-expanded", String(open));
    nav.classList.toggle("open", open);
  });
  nav.addEventListener("click", () => {
    menu.setAttribute("aria-expanded", "false");
    nav.classList.remove("open");
  });
  const main = h("main", { id: "main", tabindex: "-1" });
  put(app, h("div", { class: "shell" },
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#/overview" }, h("img", { src: "page/icon.svg", alt: "", width: "28", height: "28" }), "typegate"),
      h("button", { type: "button", class: "button find", "aria-keyshortcuts": "Control+K", onclick: () => showPalette(ROOMS) }, "Go to…", h("kbd", { "aria-hidden": "true" }, "Ctrl K")),
      menu, nav,
      h("div", { class: "who" }, status, h("span", { class: "muted" }, "Signed in as ", h("strong", null, state.session.name), state.session.name === state.session.role ? null : ` (${state.session.role})`),
        button("Sign out", async () => {
          await signOut();
          signInView("You are signed out.");
        }, { kind: "quiet" }))),
    main));
  return main;
}

async function show() {
  if (!state.session) return;
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = (path || "overview").split("/");
  const room = ROOMS.find(([key]) => key === name) ?? ROOMS[0];
  frame ??= shell();
  leaving?.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  for (const link of document.querySelectorAll("[data-room]")) {
    if (link.dataset.room === room[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let made;
  try {
    made = await import(`./room-${room[0]}.js`);
  } catch {
    say("This part of the page could not be loaded. Is the gateway running?", "error");
    return;
  }
  if (signal.aborted) return;
  // Leaving a room cancels its open dialogs.
  for (const open of document.querySelectorAll("dialog")) open.close();
  const heading = h("h1", { tabindex: "-1" }, room[1]);
  const place = h("div", { class: "room" });
  put(frame, h("div", { class: "room-head" }, heading, h("div", { class: "room-actions" })), place);
  document.title = `${room[1]} · typegate`;
  window.scrollTo(0, 0);
  heading.focus({ preventScroll: true });
  made.render(place, {
    signal,
    part: rest.map(decodeURIComponent),
    query: new URLSearchParams(query),
    actions: frame.querySelector(".room-actions"),
    title(text) {
      heading.textContent = text;
      document.title = `${text} · typegate`;
    },
  });
}

async function enter() {
  frame = null;
  start();
  if (!location.hash || location.hash.startsWith("#code=")) history.replaceState(null, "", "#/overview");
  await show();
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#code=")) begin();
  else show();
});
state.onSignedOut = () => {
  if (!state.session) return;
  state.session = null;
  signInView("The session has ended. Sign in again to continue where you were.");
};

async function begin() {
  theme();
  const code = location.hash.startsWith("#code=") ? location.hash.slice(6) : null;
  try {
    if (code) {
      // Keep the one-time code out of the history and of copied addresses.
      history.replaceState(null, "", "#/overview");
      try {
        await signIn(code);
      } catch (error) {
        if (!(await resume())) return signInView(error.status === 401 ? "This link has already been used, or is older than a minute." : error.message);
      }
      return await enter();
    }
    if (await resume()) return await enter();
    return signInView();
  } catch (error) {
    signInView(error.message);
  }
}

begin();
