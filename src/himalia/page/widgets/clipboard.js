// Copying, also where browsers offer no clipboard: plain HTTP from another host.

import { h } from "./elements.js";
import { toast } from "./toasts.js";

export async function copy(text, what = "Copied") {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyBySelection(text);
    toast(what);
  } catch {
    toast("The browser does not allow this page to copy", "bad");
  }
}

function copyBySelection(text) {
  const area = h("textarea", { class: "offscreen", value: text, "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("refused");
}

export function copyButton(text, label = "Copy") {
  return h("button", { class: "button quiet", type: "button", onclick: () => copy(text()) }, label);
}
