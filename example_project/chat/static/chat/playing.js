// A conversation that plays by itself: a message a second, until its end or until the visitor stops it.

import { look } from "./following.js";
import { atEnd, list, toEnd, turn } from "./messages.js";
import { answer } from "./replies.js";
import { forget } from "./searching.js";

// Milliseconds between two messages.
const PACE = 1000;

export async function play(player) {
  // Loading the page again must not play it again.
  forget("play");
  const [stop, again] = player.querySelectorAll("button");
  const progress = player.querySelector("progress");
  let stopped = false;
  const stopping = new Promise((resolve) => stop.addEventListener("click", () => resolve((stopped = true))));
  tell(player, "A conversation plays. What is stored grows, and the next prompt stays small.");
  let failed = "";
  let folded = false;
  for (let number = 0; number < progress.max && !stopped && !failed; number++) {
    const next = pause(PACE);
    // A screen reader would be told of a message every second.
    list.setAttribute("aria-live", "off");
    const asks = await store(player, number).catch((error) => void (failed = error.message));
    if (failed) break;
    await look(turn());
    progress.value = number + 1;
    if (asks) {
      list.setAttribute("aria-live", "polite");
      // A reply goes on if it is being written at the stop. It has a button of its own.
      await Promise.race([answer(), stopping]);
    }
    if (!folded && Number(document.querySelector("#panel .state").dataset.covered)) {
      folded = true;
      tell(player, "The older messages are in the summary now. They have a dashed frame.");
    }
    await Promise.race([next, stopping]);
  }
  list.setAttribute("aria-live", "polite");
  const all = `That was all.${folded ? " The last question was about the first message, which was folded long ago." : ""}`;
  tell(player, `${failed || (stopped ? "Stopped." : all)} You can go on with the conversation.`);
  const focused = document.activeElement === stop;
  const follows = atEnd();
  progress.hidden = stop.hidden = true;
  again.hidden = false;
  player.dataset.over = "";
  if (focused) document.getElementById("text").focus({ preventScroll: true });
  if (follows) {
    toEnd();
    player.scrollIntoView({ block: "end" });
  }
}

// Store the message with this number. Return whether it waits for a reply.
async function store(player, number) {
  let response;
  try {
    response = await fetch(player.dataset.line.replace(/0\/$/, `${number}/`), {
      method: "POST",
      headers: { "X-CSRFToken": document.body.dataset.token },
    });
  } catch {
    throw new Error("The site cannot be reached.");
  }
  if (!response.ok) throw new Error("This conversation does not exist any more, or you have signed in or out.");
  return (await response.json()).asks;
}

function tell(player, text) {
  player.querySelector("[role=status]").textContent = text;
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
