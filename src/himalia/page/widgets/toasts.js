// Short messages that disappear after a few seconds.

import { h } from "./elements.js";

const STAY_MS = 4000;
const TOASTS_MAX = 4;

export function toast(text, kind = "") {
  const place = document.getElementById("toasts");
  while (place.children.length >= TOASTS_MAX) place.firstChild.remove();
  const element = h("div", { class: `toast ${kind}` }, text);
  place.append(element);
  setTimeout(() => element.remove(), STAY_MS);
}

/** Do some work and show its error, if it fails, as a toast. Returns whether it succeeded. */
export async function withErrorToast(work, button) {
  if (button) button.disabled = true;
  try {
    await work();
    return true;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  } finally {
    if (button) button.disabled = false;
  }
}
