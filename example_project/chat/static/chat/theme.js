// The colours that the visitor has chosen: the system's, light or dark. It runs before the page is shown. The admin of
// Django keeps the same choice in the same place, so it applies to both.
"use strict";

const THEMES = ["auto", "light", "dark"];
const chosen = () => localStorage.getItem("theme") ?? "auto";

function paint() {
  document.documentElement.dataset.theme = chosen();
  const button = document.getElementById("theme");
  if (button) button.textContent = `Colours: ${chosen()}`;
}

paint();
document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    localStorage.setItem("theme", THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length]);
    paint();
  });
  paint();
});
