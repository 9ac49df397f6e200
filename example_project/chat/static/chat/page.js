// The page of a conversation. Without a conversation, only the keys of the composer and the menus are needed.

import "./copying.js";
import "./editing.js";
import "./searching.js";
import { compose } from "./composer.js";
import { follow } from "./following.js";
import { list, toEnd } from "./messages.js";
import { play } from "./playing.js";
import { answer } from "./replies.js";

// On a telephone the list of conversations stands above the conversation, and is closed.
const conversations = document.querySelector(".list details");
if (list && conversations && matchMedia("(max-width: 60rem)").matches) conversations.open = false;

if (list) {
  document.querySelector(".plain")?.remove();
  compose(document.getElementById("text"));
  // To a message that the address names, the browser scrolls by itself.
  if (!("older" in list.dataset) && !document.getElementById(location.hash.slice(1))) toEnd();
  follow();
  const player = document.getElementById("player");
  if (player) play(player);
  else if ("unanswered" in list.dataset) answer();
}
