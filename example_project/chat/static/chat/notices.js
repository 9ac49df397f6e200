// What the page tells the user: errors in an alert, and the rest in a status line.

const notice = () => document.getElementById("notice");

export function say(text) {
  const paragraph = document.createElement("p");
  paragraph.className = "refused";
  paragraph.append(text);
  notice().replaceChildren(paragraph);
  return paragraph;
}

export function silence() {
  notice().replaceChildren();
}

// A word beside the box of the composer. An empty text removes it.
export function hint(text) {
  document.getElementById("hint").textContent = text;
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-dismiss]")) silence();
});
