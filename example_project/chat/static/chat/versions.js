// The slider through the versions of the summary.

const panel = document.getElementById("panel");

// The panel is replaced when the memory changes. Without scripts there is no slider.
export function showSlider() {
  const label = panel.querySelector(".versions");
  if (label) label.hidden = false;
}

panel?.addEventListener("input", async (event) => {
  const slider = event.target.closest("[data-versions]");
  if (!slider) return;
  const number = slider.dataset.versions.split(" ")[slider.value];
  slider.setAttribute("aria-valuetext", `Version ${number}`);
  try {
    const response = await fetch(slider.dataset.url.replace(/0\/$/, `${number}/`));
    const wanted = slider.dataset.versions.split(" ")[slider.value];
    // A slower response to an earlier position must not replace a later one.
    if (response.ok && wanted === number) document.getElementById("version").innerHTML = await response.text();
  } catch {
    // The next move of the slider tries again.
  }
});
