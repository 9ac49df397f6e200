// Replies: reading the stream of one, stopping it, and putting the stored message in its place.

import { hint, say, silence } from "./notices.js";
import { atEnd, last, list, refresh, toEnd, turn } from "./messages.js";

const stop = document.getElementById("stop");

// Aborts the reply that is being written; null while none is.
let cut = null;

export const writing = () => cut !== null;

export async function answer() {
  if (cut) return;
  const mine = (cut = new AbortController());
  stop.hidden = false;
  list.setAttribute("aria-busy", "true");
  const item = begin();
  const text = item.querySelector(".text");
  const from = turn();
  const asked = last();
  let failed;
  try {
    failed = await read(text, mine.signal);
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
    offerAnother(failed);
  }
  cut = null;
  stop.hidden = true;
  list.removeAttribute("aria-busy");
  hint("");
}

// End the reply that is being written, because its question has changed, and answer the new question.
export async function answerAgain(from) {
  cut?.abort("asked again");
  while (cut) await pause(20);
  silence();
  forgetFailed();
  await refresh(from);
  toEnd();
  await answer();
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

// Read the reply into the element. Return why it failed, or null.
async function read(text, signal) {
  const response = await fetch(list.dataset.reply, {
    method: "POST",
    headers: { "X-CSRFToken": document.body.dataset.token, Accept: "application/x-ndjson" },
    signal,
  });
  if (!response.ok) throw new Error("Something went wrong on this site. Your message is stored.");
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

function offerAnother(reason) {
  const retry = document.createElement("button");
  retry.append("Try again");
  retry.addEventListener("click", () => {
    forgetFailed();
    silence();
    answer();
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
