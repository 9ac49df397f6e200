// The list of messages: bringing it up to date in place, and scrolling.

export const list = document.getElementById("messages");

// What a worker has folded, as the panel says, and whether that was shown before.
let covered = 0;
let painted = false;

const shown = () => [...list.querySelectorAll("[data-position]")];
const positionOf = (item) => Number(item?.dataset.position ?? 0);

export const first = () => positionOf(shown()[0]);
export const last = () => positionOf(shown().at(-1));

// The position of the question before the last one. A new turn changes the messages from there on: the menu of that
// question loses what only the last one has.
export function turn() {
  return positionOf(shown().filter((item) => item.matches(".user")).at(-2)) || first();
}

// Show the stored messages from a position on as they are now. Return whether the server answered.
export async function refresh(from) {
  let response;
  try {
    response = await fetch(`${list.dataset.url}?from=${from}`, { cache: "no-store" });
  } catch {
    return false;
  }
  if (!response.ok) return false;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("ol");
  const follows = atEnd();
  const before = last();
  for (const item of [...fresh.children]) {
    const old = document.getElementById(item.id);
    if (old === null) insert(item);
    // What the user is editing stays, and so does what looks the same.
    else if (!old.querySelector("textarea") && old.dataset.look !== item.dataset.look) replace(old, item);
  }
  const end = Number(fresh.dataset.end);
  for (const item of shown()) {
    if (positionOf(item) > end) item.remove();
  }
  for (const title of document.querySelectorAll(".bar h1 bdi, .list [aria-current] bdi")) {
    title.textContent = fresh.dataset.title;
  }
  document.title = fresh.dataset.title;
  const renaming = document.getElementById("title");
  if (!renaming.closest("[open]")) renaming.value = fresh.dataset.name;
  mark(covered);
  if (last() > before) {
    moveUp();
    // If nothing was added, the reader may be on the way to another part of the page.
    if (follows) toEnd();
  }
  return true;
}

// The list of conversations begins with the one in which somebody wrote last.
function moveUp() {
  const conversation = document.querySelector(".list [aria-current]")?.closest("li");
  if (conversation?.previousElementSibling) conversation.parentElement.prepend(conversation);
}

// Remove the reply to the last question from the page, and the question itself if it gets another text.
export function removeTurn(itself) {
  const items = shown();
  const question = items.findLastIndex((item) => item.matches(".user"));
  for (const item of items.slice(itself ? question : question + 1)) item.remove();
}

function insert(item) {
  // A reply that is being written, or has failed, is not stored. It stands at the end.
  const next = [...list.children].find((other) => !other.dataset.position || positionOf(other) > positionOf(item));
  list.insertBefore(item, next ?? null);
  htmx.process(item);
}

// An event may have brought a message before the response to the request that stored it.
list?.addEventListener("htmx:afterSwap", () => {
  const ids = new Set();
  for (const item of shown()) {
    if (ids.has(item.id)) item.remove();
    ids.add(item.id);
  }
  moveUp();
});

function replace(old, item) {
  const focused = old.contains(document.activeElement);
  old.replaceWith(item);
  htmx.process(item);
  if (focused) item.focus({ preventScroll: true });
}

// Mark the messages that the summary covers.
export function mark(position) {
  const before = covered;
  covered = position;
  for (const item of shown()) {
    item.classList.toggle("folded", positionOf(item) <= covered);
    // A fold while the page is open: the reader sees what goes into the summary.
    if (painted && positionOf(item) > before && positionOf(item) <= covered) item.classList.add("folding");
  }
  painted = true;
}

// What was read of a redacted message goes, too. It is fetched again when it is opened.
document.body.addEventListener("redacted", () => {
  for (const recalled of list.querySelectorAll(".recalled[open]")) recalled.open = false;
  refresh(first());
});

list?.addEventListener("animationend", (event) => event.target.classList.remove("folding"));

// On a telephone the page scrolls, elsewhere the list.
const listScrolls = () => getComputedStyle(list).overflowY !== "visible";

// Whether the reader is at the end. Only then does the page follow what is written.
export function atEnd() {
  if (listScrolls()) return list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  const bottom = list.lastElementChild?.getBoundingClientRect().bottom ?? 1;
  return bottom > 0 && bottom < innerHeight + 80;
}

export function toEnd() {
  if (listScrolls()) list.scrollTop = list.scrollHeight;
  else list.lastElementChild?.scrollIntoView({ block: "end" });
}
