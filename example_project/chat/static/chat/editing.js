// The menus of the messages, and editing a question in its place.

import { answerAgain } from "./replies.js";

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("click", (event) => {
  const edit = event.target.closest("[data-edit]");
  if (edit) begin(edit.closest(".message"), edit.dataset.edit);
  const again = event.target.closest("[data-again]");
  if (again) answerAgain({ again: again.dataset.again });
  close(again ? null : event.target.closest(".menu"));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close(null);
});

function close(except) {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    if (menu !== except) menu.open = false;
  }
}

function begin(item, again) {
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
    const edited = box.value.trim();
    if (!edited) leave();
    answerAgain(edited ? { again, text: edited } : { again });
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
