// JSON as elements: indented, with its keys, strings, numbers and literals in their colours.

import { h } from "./elements.js";
import { bytes } from "./format.js";
import { indented } from "../live/json_text.js";

const CHARS_SHOWN = 200_000;
const COLOURED_MAX = 5000; // pieces that become elements; the rest is plain text

/** Elements for a JSON text: the beginning of it, and a button for the rest of a long one. */
export function jsonView(text) {
  const shown = h("pre", { class: "payload", tabindex: "0" });
  const isWhole = fill(shown, text, CHARS_SHOWN);
  if (isWhole) return [shown];
  const rest = h("button", { class: "button", type: "button", onclick: () => {
    fill(shown, text, Infinity);
    rest.remove();
  } }, `Show all ${bytes(text.length)}`);
  return [shown, rest];
}

/** Put the text into an element, up to so many characters; returns whether that was all of it. */
function fill(element, text, limit) {
  element.replaceChildren();
  let chars = 0;
  let number = 0;
  let plain = "";
  for (const piece of indented(text)) {
    if (chars >= limit) {
      element.append(plain);
      return false;
    }
    const part = piece.text.slice(0, limit - chars);
    chars += piece.text.length;
    number += 1;
    if (piece.kind === "mark" || number > COLOURED_MAX) {
      plain += part;
      continue;
    }
    element.append(plain, h("span", { class: `json-${piece.kind}` }, part));
    plain = "";
  }
  element.append(plain);
  return chars <= limit;
}
