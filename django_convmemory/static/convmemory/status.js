/* Shows the state of a session's compaction without a reload: asks for it again until nothing more is to come. */
"use strict";
(() => {
  const shown = document.getElementById("convmemory-status");
  if (!shown) return;
  // In milliseconds. The waits grow, and a page that is left open stops to ask.
  const FIRST = 1000, LONGEST = 30000, until = Date.now() + 3600000;
  let wait = FIRST, tag = "", timer = 0;

  function later() {
    clearTimeout(timer);
    if (!("live" in shown.dataset) || Date.now() > until) return;
    timer = setTimeout(ask, wait);
    wait = Math.min(wait * 1.5, LONGEST);
  }

  function ask() {
    if (document.hidden) return;
    // Not fetch(): this parses the answer itself, which a policy with trusted types allows.
    const request = new XMLHttpRequest();
    request.open("GET", shown.dataset.url);
    request.responseType = "document";
    if (tag) request.setRequestHeader("If-None-Match", tag);
    request.onload = () => {
      const fresh = request.status === 200 && request.response && request.response.getElementById(shown.id);
      if (fresh) {
        tag = request.getResponseHeader("ETag") || "";
        show(fresh);
      } else if (request.status !== 304 && request.status < 500) {
        return; // The session is gone, or the user has logged out.
      }
      later();
    };
    request.onerror = later;
    request.send();
  }

  function show(fresh) {
    for (const part of fresh.querySelectorAll("[id]")) {
      const old = document.getElementById(part.id);
      // A part that stays the same is not read out again.
      if (old && !old.isEqualNode(part)) old.replaceChildren(...part.childNodes);
    }
    if ("live" in fresh.dataset) shown.dataset.live = "yes";
    else delete shown.dataset.live;
    wait = FIRST;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    wait = FIRST;
    later();
  });
  later();
})();
