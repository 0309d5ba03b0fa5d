// Keyboard shortcuts, and a dialogue that lists them.

import { h } from "./elements.js";
import { navigate } from "../router.js";

const SECOND_KEY_MS = 1500;
const HELP = [
  ["/", "search, filter, or type code"],
  ["Space", "in a topic: pause or resume"],
  ["n", "in a topic: show the newest records"],
  ["↑ ↓ Page Home End", "in a list: select a record"],
  ["c", "copy the selected record's payload"],
  ["Enter, Shift+Enter", "in a console: run; insert a line"],
  ["↑ ↓", "in a console: recall earlier code"],
  ["Esc", "close, or leave a field"],
  ["?", "show this help"],
];

/** g and the key of a section open it. `currentView()` may have `onKey(key)`, which returns whether it used the key. */
export function startKeyboard(sections, currentView) {
  const dialog = makeHelp(sections);
  document.body.append(dialog);
  let prefixedAt = -Infinity;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const isTyping = event.target.closest?.("input, textarea, select");
    if (event.key === "Escape" && isTyping) return event.target.blur();
    if (isTyping) return;
    const section = sections.find(({ key }) => key === event.key);
    if (section && performance.now() - prefixedAt < SECOND_KEY_MS) {
      prefixedAt = -Infinity;
      return navigate(`#/${section.name}`);
    }
    if (event.key === "g") prefixedAt = performance.now();
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "/") focusFind(event);
    else if (!isPressing(event) && currentView()?.onKey?.(event.key)) event.preventDefault();
  });
  return () => dialog.showModal();
}

/** Whether the key activates the button or link that has the focus. */
const isPressing = (event) => [" ", "Enter"].includes(event.key) && event.target.closest?.("button, a, summary");

function focusFind(event) {
  const field = document.querySelector("main [data-find]");
  if (!field) return;
  event.preventDefault();
  field.focus();
}

function makeHelp(sections) {
  const listed = (field) => sections.map((section) => section[field]).join(", ");
  const keys = [[`g then ${listed("key")}`, `go to ${listed("title")}`], ...HELP];
  const dialog = h("dialog", { class: "help card", "aria-label": "Keys" },
    h("h2", {}, "Keys"), h("dl", { class: "keys" }, ...keys.flatMap(([pressed, what]) => [h("dt", {}, pressed), h("dd", {}, what)])));
  dialog.append(h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Close"));
  return dialog;
}
