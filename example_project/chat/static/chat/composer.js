// The box for the next message: its keys, its draft, and what happens when it is sent.

import { toEnd } from "./messages.js";
import { answer, writing } from "./replies.js";
import { forget } from "./searching.js";
import { hint, say } from "./notices.js";

const WAITS = "The reply is still being written. Send your message when it has ended, or stop the reply.";
// The unsent text, so that loading the page again does not lose it.
const draft = `draft ${location.pathname}`;

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.matches(".say textarea")) {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});

export function compose(box) {
  box.value ||= sessionStorage.getItem(draft) ?? "";
  box.addEventListener("input", () => sessionStorage.setItem(draft, box.value));
  // A form of a page of older messages leads to another page.
  box.form.addEventListener("submit", () => {
    if (!box.form.hasAttribute("hx-post")) sessionStorage.removeItem(draft);
  });
  let sent = "";
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (!event.detail.elt.matches("form.say")) return;
    sent = box.value;
    if (writing()) {
      event.preventDefault();
      hint(WAITS);
    }
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt.matches("form.say") && event.detail.successful && event.detail.xhr.status === 200) {
      // What was typed since then stays.
      box.value = box.value.startsWith(sent) ? box.value.slice(sent.length) : box.value;
      if (box.value) sessionStorage.setItem(draft, box.value);
      else sessionStorage.removeItem(draft);
      forget("at", "before", "after");
      toEnd();
      answer();
    }
  });
  document.body.addEventListener("htmx:sendError", () => {
    say("The site cannot be reached. Your text stays in the box. Send it again.");
  });
}

document.body.addEventListener("htmx:responseError", (event) => {
  const { status } = event.detail.xhr;
  if (status === 404) say("This conversation or message does not exist any more. Reload the page.");
  else if (status === 403) say("You have signed in or out in another window. Reload the page.");
  else if (![409, 422, 429].includes(status)) say("Something went wrong on this site. Try again.");
});
