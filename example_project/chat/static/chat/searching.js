// Search. The links of the hits also work without this: they lead to the page that has the message.

document.addEventListener("click", (event) => {
  const hit = event.target.closest("[data-jump]");
  const message = hit && new URL(hit.href).pathname === location.pathname && document.getElementById(hit.dataset.jump);
  if (message) {
    // The message is on this page. So the hits stay, and a reply that is being written is not cut off.
    event.preventDefault();
    location.hash = hit.dataset.jump;
    message.scrollIntoView();
  }
  if (event.target.closest("[data-close]")) {
    event.preventDefault();
    closeSearch();
  }
});

// On a telephone, what is found stands above the messages, far from the newest one.
document.getElementById("found")?.addEventListener("htmx:afterSwap", (event) => {
  event.currentTarget.querySelector(".count")?.scrollIntoView({ block: "nearest" });
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.closest(".bar .find, #found")) closeSearch();
});

function closeSearch() {
  document.getElementById("found").replaceChildren();
  const box = document.getElementById("find");
  box.value = "";
  box.focus();
  forget("q");
}

// Take parameters out of the address, so that they do not count when the page is loaded again.
export function forget(...names) {
  const address = new URL(location.href);
  for (const name of names) address.searchParams.delete(name);
  address.hash = "";
  history.replaceState(null, "", address);
}
