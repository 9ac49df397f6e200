// The menus of the messages, and editing a question in its place.

import { list } from "./messages.js";
import { answerAgain } from "./replies.js";

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

// The server says so when it has removed the answer to a question, and perhaps replaced the question.
document.body.addEventListener("asked-again", (event) => {
  list.querySelector(".message:has(textarea)")?.remove();
  close(null);
  answerAgain(event.detail.from);
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
    htmx.ajax("POST", list.dataset.again, {
      values: { position, last, text: box.value },
      target: "#notice",
      headers: { "X-CSRFToken": document.body.dataset.token },
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
