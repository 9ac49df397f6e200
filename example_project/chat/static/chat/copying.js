// The buttons that copy a piece of code or a whole message.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-message]");
  if (!button) return;
  const isCode = "copy" in button.dataset;
  const source = isCode ? button.parentElement.querySelector("code") : button.closest(".message").querySelector(".text");
  try {
    await navigator.clipboard.writeText(isCode ? source.textContent : source.innerText);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Could not copy";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
});
