// Following the conversation: the server's events tell this page what other windows and the worker did.

import { first, last, list, mark, refresh, turn } from "./messages.js";
import { writing } from "./replies.js";
import { grow } from "./growth.js";
import { say } from "./notices.js";
import { showSlider } from "./versions.js";

// Milliseconds between two looks at a conversation whose events cannot be had.
const LOOK = 4000;

const panel = document.getElementById("panel");
const events = ["message", "summary", "state"];

let source = null;
// Whether something may have changed since the page was loaded.
let greeted = document.visibilityState !== "visible";
let timer = 0;
let tag = panel?.dataset.tag ?? "";

export function follow() {
  marked();
  document.addEventListener("visibilitychange", attend);
  // The server says so after a request of this page that changed several messages.
  document.body.addEventListener("messages-changed", (event) => look(event.detail.from));
  attend();
}

// A browser opens six connections to a server at most. So only visible windows hold one.
function attend() {
  source?.close();
  source = null;
  clearTimeout(timer);
  if (document.visibilityState !== "visible") return;
  source = new EventSource(list.dataset.events);
  source.addEventListener("reset", () => {
    // The first one says only that the stream begins.
    look(greeted ? first() : turn());
    greeted = true;
  });
  for (const name of events) source.addEventListener(name, () => look(turn()));
  source.addEventListener("error", () => {
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      poll();
    }
  });
}

async function poll() {
  if (await look(turn())) timer = setTimeout(poll, LOOK);
}

// Events come in groups. One look serves a group.
let looking = null;
let wanted = Infinity;

// Show what has changed: the messages from a position on, and the panel.
export function look(from) {
  wanted = Math.min(wanted, from);
  looking ??= Promise.resolve().then(async () => {
    const since = wanted;
    wanted = Infinity;
    looking = null;
    const there = await update();
    // A window that writes a reply shows the stored messages at its end.
    if (there && !writing() && !Object.hasOwn(list.dataset, "older")) await refresh(since);
    return there;
  });
  return looking;
}

// Bring the panel up to date. Return false if the conversation is gone.
async function update() {
  try {
    const response = await fetch(panel.dataset.url, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (response.status === 404) {
      say("This conversation does not exist any more, or you have signed out in another window.");
      return false;
    }
    if (response.ok) {
      const text = await response.text();
      tag = response.headers.get("ETag") ?? "";
      const open = panel.querySelector("details.next")?.open;
      const version = panel.querySelector("#version")?.innerHTML;
      const slides = document.activeElement?.matches("[data-versions]");
      panel.innerHTML = text;
      if (open) panel.querySelector("details.next").open = true;
      marked(version);
      if (slides) panel.querySelector("[data-versions]")?.focus({ preventScroll: true });
    }
  } catch {
    // The server is unreachable. The next event or look tries again.
  }
  return true;
}

function marked(version) {
  showSlider(version);
  grow(panel);
  mark(Number(panel.querySelector("[data-covered]")?.dataset.covered ?? 0));
}
