// The page of a conversation. Without a conversation, only the keys of the composer and the menus are needed.

import "./copying.js";
import "./editing.js";
import "./searching.js";
import { compose } from "./composer.js";
import { follow } from "./following.js";
import { list, toEnd } from "./messages.js";
import { answer } from "./replies.js";

if (list) {
  const box = document.getElementById("text");
  // A page of older messages has no box.
  if (box) {
    compose(box);
    // To a message that the address names, the browser scrolls by itself.
    if (!document.getElementById(location.hash.slice(1))) toEnd();
  }
  follow();
  if ("unanswered" in list.dataset) answer();
}
