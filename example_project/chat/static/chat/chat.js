// Streams replies, updates the memory panel by its entity tag, and marks the messages that are in the summary.
"use strict";

const messages = document.getElementById("messages");
const panel = document.getElementById("panel");
const notice = () => document.getElementById("notice");
const token = document.body.dataset.token;

// Replies.

let streaming = false;
const stop = document.getElementById("stop");

async function answer() {
  if (streaming) return;
  streaming = true;
  const cut = new AbortController();
  const cutShort = () => cut.abort();
  stop.addEventListener("click", cutShort);
  stop.hidden = false;
  const item = document.createElement("li");
  item.className = "message assistant writing";
  const text = document.createElement("div");
  text.className = "text";
  text.dir = "auto";
  item.append(text);
  messages.append(item);
  show(item);
  let failed = null;
  let done = null;
  try {
    const response = await fetch(messages.dataset.reply, {
      method: "POST",
      headers: { "X-CSRFToken": token },
      signal: cut.signal,
    });
    if (!response.ok) throw new Error(`The site answered with an error (${response.status}). Your message is stored.`);
    for await (const line of lines(response.body)) {
      if (line.text) {
        text.append(line.text);
        show(item);
      }
      failed = line.error ?? failed;
      done = line.done ?? done;
    }
    if (done === null && failed === null) failed = "The reply broke off. Your message is stored.";
  } catch (error) {
    if (cut.signal.aborted) failed = (await isStored(text)) ? null : "Stopped. Your message is stored.";
    else failed = error instanceof TypeError ? "The connection broke off. Your message is stored." : error.message;
  }
  streaming = false;
  stop.hidden = true;
  stop.removeEventListener("click", cutShort);
  item.classList.remove("writing");
  if (failed !== null) {
    item.classList.add("failed");
    item.hidden = !text.textContent;
    refused(failed);
  } else if (!messages.querySelector("textarea")) {
    // Show the reply with its menu, as the server renders it, unless the user is editing a message.
    location.reload();
  }
}

// Whether the part of a stopped reply is stored. The server stores it when it notices that the browser disconnected.
async function isStored(text) {
  const asked = Number([...messages.querySelectorAll("[data-position]")].at(-1)?.dataset.position);
  for (let tries = 0; text.textContent.trim() && tries < 20; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 250));
    await follow();
    if (Number(panel.querySelector("[data-last]").dataset.last) > asked) return true;
  }
  return false;
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

function say(text) {
  const paragraph = document.createElement("p");
  paragraph.className = "refused";
  paragraph.append(text);
  notice().replaceChildren(paragraph);
  return paragraph;
}

function refused(reason) {
  const retry = document.createElement("button");
  retry.append("Try again");
  retry.addEventListener("click", () => {
    messages.querySelectorAll(".failed").forEach((item) => item.remove());
    notice().replaceChildren();
    answer();
  });
  say(`${reason} `).append(retry);
}

function show(item) {
  item.scrollIntoView({ block: "end" });
}

// The memory panel.

// Milliseconds between two requests: during activity, and at most, after a while without any.
const SOON = 1000;
const SELDOM = 16000;

let tag = panel?.dataset.tag ?? "";
let pause = SOON;
let next = 0;

async function follow() {
  if (document.visibilityState === "visible") {
    pause = Math.min(pause * 2, SELDOM);
    try {
      const response = await fetch(panel.dataset.url, {
        headers: tag ? { "If-None-Match": tag } : {},
        cache: "no-store",
      });
      if (response.ok) {
        tag = response.headers.get("ETag") ?? "";
        const open = panel.querySelector("details.next")?.open;
        panel.innerHTML = await response.text();
        if (open) panel.querySelector("details.next").open = true;
        mark();
        pause = SOON;
      }
    } catch {
      // The server is unreachable. The next request tries again.
    }
  }
  clearTimeout(next);
  next = setTimeout(follow, streaming || panel.querySelector(".state.compacting, .state.due") ? SOON : pause);
}

function mark() {
  const covered = Number(panel.querySelector("[data-covered]")?.dataset.covered ?? 0);
  for (const item of messages.querySelectorAll(".message[data-position]")) {
    item.classList.toggle("folded", Number(item.dataset.position) <= covered);
  }
}

// Search. The links of the hits also work without this: they lead to the page that has the message.

document.addEventListener("click", (event) => {
  const hit = event.target.closest("[data-jump]");
  const message = hit && new URL(hit.href).pathname === location.pathname && document.getElementById(hit.dataset.jump);
  if (message) {
    // The message is on this page. So the hits stay, and a reply that is being written is not cut off.
    event.preventDefault();
    location.hash = hit.dataset.jump;
    message.scrollIntoView();
  }
  if (event.target.closest("[data-close]")) {
    event.preventDefault();
    closeSearch();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.closest(".bar .find, #found")) closeSearch();
});

function closeSearch() {
  document.getElementById("found").replaceChildren();
  const box = document.getElementById("find");
  box.value = "";
  box.focus();
  forget("q");
}

// Take parameters out of the address, so that they do not count when the page is loaded again.
function forget(...names) {
  const address = new URL(location.href);
  for (const name of names) address.searchParams.delete(name);
  address.hash = "";
  history.replaceState(null, "", address);
}

// Keys and buttons.

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.matches(".say textarea")) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const edit = event.target.closest("[data-edit]");
  if (edit) begin(edit.closest(".message"), edit.dataset);
  close(event.target.closest(".menu"));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close(null);
});

function close(except) {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    if (menu !== except) menu.open = false;
  }
}

function begin(item, { edit: position, last }) {
  const text = item.querySelector(".text");
  const original = [...text.childNodes];
  const box = document.createElement("textarea");
  box.value = text.textContent;
  box.rows = 3;
  box.setAttribute("aria-label", "Your message, edited");
  const send = document.createElement("button");
  send.className = "primary";
  send.append("Ask again");
  const ask = () => {
    htmx.ajax("POST", messages.dataset.reply.replace(/reply\/$/, "again/"), {
      values: { position, last, text: box.value },
      target: "#notice",
      headers: { "X-CSRFToken": token },
    });
  };
  const cancel = document.createElement("button");
  cancel.append("Cancel");
  const leave = () => text.replaceChildren(...original);
  send.addEventListener("click", ask);
  cancel.addEventListener("click", leave);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      ask();
    }
    if (event.key === "Escape") leave();
  });
  item.querySelector(".menu").open = false;
  text.replaceChildren(box, send, cancel);
  box.focus();
}

// The unsent text, so that reloading the page does not lose it.
const draft = `draft ${location.pathname}`;

if (messages) {
  const box = document.getElementById("text");
  // A page of older messages has no box.
  if (box) {
    box.value ||= sessionStorage.getItem(draft) ?? "";
    box.addEventListener("input", () => sessionStorage.setItem(draft, box.value));
  }
  mark();
  next = setTimeout(follow, SOON);
  document.addEventListener("visibilitychange", follow);
  // To a message that the address names, the browser scrolls by itself.
  if (box && !document.getElementById(location.hash.slice(1))) {
    document.querySelector("#messages li:last-child")?.scrollIntoView({ block: "end" });
  }
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    // While a reply streams, the user cannot answer it yet.
    if (streaming && event.detail.elt.matches("form.say")) event.preventDefault();
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt.matches("form.say") && event.detail.successful && event.detail.xhr.status === 200) {
      event.detail.elt.elements.text.value = "";
      sessionStorage.removeItem(draft);
      forget("at", "before", "after");
      answer();
    }
  });
  document.body.addEventListener("htmx:sendError", () => {
    say("The site cannot be reached. Your text stays in the box. Send it again.");
  });
  document.body.addEventListener("htmx:responseError", (event) => {
    const { status } = event.detail.xhr;
    if (status === 404) say("This conversation or message does not exist any more. Reload the page.");
    else if (status === 403) say("You have signed in or out in another window. Reload the page.");
    else if (![409, 422, 429].includes(status)) say(`The site answered with an error (${status}). Try again.`);
  });
  if ("unanswered" in messages.dataset) answer();
}
