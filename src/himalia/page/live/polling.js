// Asking again and again, but only while somebody looks and is signed in.

const polls = new Set();
let isHeld = false;

/** Hold all polls, or let them ask again at once. Without a session every question would be refused. */
export function holdPolls(held) {
  isHeld = held;
  if (!held) for (const turn of polls) turn();
}

/**
 * Call `work(signal)` now, and again `everyMs` after it has ended. A hidden page does not ask; when it is shown again
 * it asks at once. Returns a function that ends it. `work` handles its own errors.
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
