// Distinguishing scrolling by the user from scrolling caused by content that grows or shrinks.

const USER_SCROLL_MS = 1000; // a scroll this soon after an input event is the user's
const UP = new Set(["ArrowUp", "PageUp", "Home"]);

/** Return a function that tells whether the user is scrolling this element away from its end. */
export function trackUserScroll(element) {
  let at = -Infinity;
  const listen = (kind, isAway) => element.addEventListener(kind, (event) => {
    if (isAway(event)) at = performance.now();
  }, { passive: true });
  listen("wheel", (event) => event.deltaY < 0);
  listen("touchmove", () => true);
  listen("keydown", (event) => UP.has(event.key));
  listen("pointerdown", (event) => event.target === element); // its scroll bar
  return () => performance.now() - at < USER_SCROLL_MS;
}
