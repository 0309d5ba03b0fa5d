// Repeated requests, sent only while the page is visible and the user is signed in.

const polls = new Set();
let isHeld = false;

/** Hold all polls, or resume them at once. Without a session the server would refuse every request. */
export function holdPolls(held) {
  isHeld = held;
  if (!held) for (const turn of polls) turn();
}

/**
 * Call `work(signal)` now, and again `everyMs` after it has ended. It is not called while the page is hidden, and at once
 * when it is shown. Returns a function that ends the poll. `work` handles its own errors.
 */
export function poll(work, everyMs) {
  const ended = new AbortController();
  let timer = null;
  let busy = false;

  async function turn() {
    clearTimeout(timer);
    timer = null;
    if (busy || ended.signal.aborted || document.hidden || isHeld) return;
    busy = true;
    try {
      await work(ended.signal);
    } catch (error) {
      if (error.name !== "AbortError") console.error(error);
    } finally {
      busy = false;
    }
    if (!ended.signal.aborted && !document.hidden && !isHeld) timer = setTimeout(turn, everyMs);
  }

  function onVisibility() {
    if (document.hidden) clearTimeout(timer);
    else turn();
  }

  polls.add(turn);
  document.addEventListener("visibilitychange", onVisibility, { signal: ended.signal });
  turn();
  return () => {
    ended.abort();
    polls.delete(turn);
    clearTimeout(timer);
  };
}
