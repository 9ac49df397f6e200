// Streams replies, follows the memory by its entity tag, and shows which messages are in the summary.
"use strict";

const messages = document.getElementById("messages");
const panel = document.getElementById("panel");
const notice = () => document.getElementById("notice");
const token = document.body.dataset.token;

// The reply.

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
    if (!response.ok) throw new Error(`The site answered ${response.status}.`);
    for await (const line of lines(response.body)) {
      if (line.text) {
        text.append(line.text);
        show(item);
      }
      failed = line.error ?? failed;
      done = line.done ?? done;
    }
    if (done === null && failed === null) failed = "The reply broke off.";
  } catch (error) {
    if (cut.signal.aborted) failed = (await isKept(text)) ? null : "Stopped. Your message is kept.";
    else failed = error instanceof TypeError ? "The connection broke off. Your message is kept." : error.message;
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
    // With its menu, as the server shows it; but not while somebody edits a message.
    location.reload();
  }
}

// Whether what there is of a stopped reply is stored, which the server does when it notices that nobody reads on.
async function isKept(text) {
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

function refused(said) {
  const retry = document.createElement("button");
  retry.append("Try again");
  retry.addEventListener("click", () => {
    messages.querySelectorAll(".failed").forEach((one) => one.remove());
    notice().replaceChildren();
    answer();
  });
  say(`${said} `).append(retry);
}

function show(item) {
  item.scrollIntoView({ block: "end" });
}

// The memory.

// Milliseconds between two looks: while something happens, and at most, where nothing has for a while.
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
      // The server is away; the next look will tell.
    }
  }
  clearTimeout(next);
  next = setTimeout(follow, streaming || panel.querySelector(".state.compacting, .state.due") ? SOON : pause);
}

function mark() {
  const covered = Number(panel.querySelector("[data-covered]")?.dataset.covered ?? 0);
  for (const one of messages.querySelectorAll(".message[data-position]")) {
    one.classList.toggle("folded", Number(one.dataset.position) <= covered);
  }
}

// What is done with keys and buttons.

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.matches(".say textarea")) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});

document.addEventListener("submit", (event) => {
  const asks = event.submitter?.dataset.confirm;
  if (asks && !confirm(asks)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const edit = event.target.closest("[data-edit]");
  if (edit) begin(edit.closest(".message"), edit.dataset);
  close(event.target.closest(".menu"));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close(null);
});

function close(but) {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    if (menu !== but) menu.open = false;
  }
}

function begin(item, { edit: position, last }) {
  const said = item.querySelector(".text");
  const before = [...said.childNodes];
  const box = document.createElement("textarea");
  box.value = said.textContent;
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
  const leave = () => said.replaceChildren(...before);
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
  said.replaceChildren(box, send, cancel);
  box.focus();
}

// What is written and not sent yet, so that it is there again when the page was loaded anew.
const draft = `draft ${location.pathname}`;

if (messages) {
  const box = document.getElementById("text");
  box.value ||= sessionStorage.getItem(draft) ?? "";
  box.addEventListener("input", () => sessionStorage.setItem(draft, box.value));
  mark();
  next = setTimeout(follow, SOON);
  document.addEventListener("visibilitychange", follow);
  document.querySelector("#messages li:last-child")?.scrollIntoView({ block: "end" });
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    // What is said meanwhile would be said to a reply that nobody has seen.
    if (streaming && event.detail.elt.matches("form.say")) event.preventDefault();
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt.matches("form.say") && event.detail.successful && event.detail.xhr.status === 200) {
      event.detail.elt.elements.text.value = "";
      sessionStorage.removeItem(draft);
      answer();
    }
  });
  document.body.addEventListener("htmx:sendError", () => {
    say("The site cannot be reached. What you have written stays in the box: send it again.");
  });
  document.body.addEventListener("htmx:responseError", (event) => {
    const { status } = event.detail.xhr;
    if (status === 404) say("This conversation, or this message of it, is gone. Load the page anew.");
    else if (status === 403) say("You have signed in or out elsewhere. Load the page anew.");
    else if (![409, 422, 429].includes(status)) say(`The site answered ${status}.`);
  });
  if ("unanswered" in messages.dataset) answer();
}
