// Asking again and again, but only while somebody looks.

/**
 * Call `work(signal)` now, and again `everyMs` after it has ended. A hidden page does not ask; when it is shown again
 * it asks at once. Returns a function that ends it. `work` handles its own errors.
 */
export function poll(work, everyMs) {
  const ended = new AbortController();
  let timer = null;
  let busy = false;

  async function turn() {
    timer = null;
    if (busy || ended.signal.aborted || document.hidden) return;
    busy = true;
    try {
      await work(ended.signal);
    } catch (error) {
      if (error.name !== "AbortError") console.error(error);
    } finally {
      busy = false;
    }
    if (!ended.signal.aborted && !document.hidden) timer = setTimeout(turn, everyMs);
  }

  function onVisibility() {
    if (document.hidden) clearTimeout(timer);
    else turn();
  }

  document.addEventListener("visibilitychange", onVisibility, { signal: ended.signal });
  turn();
  return () => {
    ended.abort();
    clearTimeout(timer);
  };
}
