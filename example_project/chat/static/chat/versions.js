// The slider through the versions of the summary.

const panel = document.getElementById("panel");

// The version that the reader looks at. If there is none, it is the newest one.
let chosen = null;

// The panel is replaced when the memory changes. The reader stays at the chosen version, of which the panel before showed
// the HTML `shown`. Without scripts there is no slider.
export function showSlider(shown) {
  const label = panel.querySelector(".versions");
  if (!label) return;
  label.hidden = false;
  const slider = label.querySelector("[data-versions]");
  const place = slider.dataset.versions.split(" ").indexOf(chosen);
  if (place === -1) return;
  slider.value = place;
  document.getElementById("version").innerHTML = shown;
  show(slider);
}

panel?.addEventListener("input", (event) => {
  const slider = event.target.closest("[data-versions]");
  if (!slider) return;
  chosen = slider.value === slider.max ? null : slider.dataset.versions.split(" ")[slider.value];
  show(slider);
});

async function show(slider) {
  const number = slider.dataset.versions.split(" ")[slider.value];
  slider.setAttribute("aria-valuetext", `Version ${number}`);
  try {
    const response = await fetch(slider.dataset.url.replace(/0\/$/, `${number}/`));
    const text = response.ok ? await response.text() : null;
    // A slower response to an earlier position must not replace a later one, nor what a new panel shows.
    const wanted = slider.isConnected && slider.dataset.versions.split(" ")[slider.value];
    if (text !== null && wanted === number) document.getElementById("version").innerHTML = text;
  } catch {
    // The next move of the slider tries again.
  }
}
