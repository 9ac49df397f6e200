// Replies: reading the stream of one, stopping it, and putting the stored message in its place.

import { hint, say, silence } from "./notices.js";
import { atEnd, last, list, refresh, removeTurn, toEnd, turn } from "./messages.js";

const stop = document.getElementById("stop");

// Aborts the reply that is being written; null while none is.
let cut = null;

export const writing = () => cut !== null;

// Ask for the reply to the newest question, and show it while it is written. A `form` with the question's id as `again`
// asks for another reply, and with a `text` it also replaces the question.
export async function answer(form = {}) {
  if (cut) return;
  const mine = (cut = new AbortController());
  stop.hidden = false;
  list.setAttribute("aria-busy", "true");
  const item = begin();
  const text = item.querySelector(".text");
  const from = turn();
  let asked = last();
  let failed;
  const begun = async () => {
    if (!form.again) return;
    removeTurn(form.text);
    if (form.text) await refresh(from);
    // A new question is stored now.
    if (form.text) form = {};
    asked = last();
    toEnd();
  };
  try {
    failed = await read(form, text, mine.signal, begun);
  } catch (error) {
    if (!mine.signal.aborted) {
      failed = error instanceof TypeError ? "The connection broke off. Your message is stored." : error.message;
    } else if (mine.signal.reason === "asked again") {
      failed = null;
    } else {
      failed = text.textContent.trim() && (await isStored(asked, from)) ? null : "Stopped. Your message is stored.";
    }
  }
  if (failed === null) {
    // If the stored message cannot be had now, what was received stays. The next event brings the message.
    if (last() > asked || (await refresh(from))) item.remove();
    else item.className = "message assistant";
  } else {
    item.className = "message assistant failed";
    item.hidden = !text.textContent;
    // The reply before is still stored.
    if (form.again) await refresh(from);
    // The box of an edited question is still open.
    if (form.text) say(failed);
    else offerAnother(failed, form);
  }
  cut = null;
  stop.hidden = true;
  list.removeAttribute("aria-busy");
  hint("");
}

// End the reply that is being written, and answer its question again.
export async function answerAgain(form) {
  cut?.abort("asked again");
  while (cut) await pause(20);
  silence();
  forgetFailed();
  await answer(form);
}

function begin() {
  const item = document.createElement("li");
  item.className = "message assistant writing";
  const text = document.createElement("div");
  text.className = "text";
  text.dir = "auto";
  const speaker = document.createElement("span");
  speaker.className = "hidden";
  speaker.append("Assistant:");
  item.append(speaker, text);
  const follows = atEnd();
  list.append(item);
  if (follows) toEnd();
  return item;
}

// Read the reply into the element. Call `begun` when the server begins it. Return why it failed, or null.
async function read(form, text, signal, begun) {
  const response = await fetch(list.dataset.reply, {
    method: "POST",
    headers: { "X-CSRFToken": document.body.dataset.token, Accept: "application/x-ndjson" },
    body: new URLSearchParams(form),
    signal,
  });
  if (!response.headers.get("Content-Type")?.startsWith("application/x-ndjson")) {
    throw new Error("Something went wrong on this site. Your message is stored.");
  }
  if (response.ok) await begun();
  let failed = "The reply broke off. Your message is stored.";
  for await (const line of lines(response.body)) {
    if (line.text) {
      const follows = atEnd();
      text.append(line.text);
      if (follows) toEnd();
    }
    if ("done" in line) failed = null;
    if (line.error) failed = line.error;
  }
  return failed;
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

// Whether the part of a stopped reply is stored. The server stores it when it notices that the browser disconnected.
async function isStored(asked, from) {
  for (let tries = 0; tries < 20 && last() <= asked; tries++) {
    await pause(250);
    await refresh(from);
  }
  return last() > asked;
}

function offerAnother(reason, form) {
  const retry = document.createElement("button");
  retry.append("Try again");
  retry.addEventListener("click", () => {
    forgetFailed();
    silence();
    answer(form);
  });
  say(`${reason} `).append(retry);
}

function forgetFailed() {
  list.querySelectorAll(".failed").forEach((item) => item.remove());
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

stop?.addEventListener("click", () => cut?.abort("stopped"));
