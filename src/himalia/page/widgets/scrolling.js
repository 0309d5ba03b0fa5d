// Telling a person who scrolls from a list that moves by itself: whenever something in it, or around it, grows or shrinks.

const BY_HAND_MS = 1000; // a scroll so soon after a hand moved is its doing
const UP = new Set(["ArrowUp", "PageUp", "Home"]);

/** A function that says whether somebody is leaving the end of this element by hand. */
export function handOn(element) {
  let at = -Infinity;
  const listen = (kind, isMeant) => element.addEventListener(kind, (event) => {
    if (isMeant(event)) at = performance.now();
  }, { passive: true });
  listen("wheel", (event) => event.deltaY < 0);
  listen("touchmove", () => true);
  listen("keydown", (event) => UP.has(event.key));
  listen("pointerdown", (event) => event.target === element); // its scroll bar
  return () => performance.now() - at < BY_HAND_MS;
}
