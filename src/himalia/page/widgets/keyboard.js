// Keys, and a dialogue that says which there are.

import { h } from "./elements.js";
import { navigate } from "../router.js";

const SECOND_KEY_MS = 1500;
const HELP = [
  ["/", "find, filter, or type code"],
  ["Space", "in a topic: pause, and go on"],
  ["n", "in a topic: the newest records"],
  ["↑ ↓ Page Home End", "in a list: choose a record"],
  ["c", "copy the chosen record's payload"],
  ["Enter, Shift+Enter", "in a console: run; a new line"],
  ["↑ ↓", "in a console: what was run before"],
  ["Esc", "close, or leave a field"],
  ["?", "this help"],
];

/** g and the key of a section open it. `currentView()` may have `onKey(key)`, which returns whether it used the key. */
export function startKeyboard(sections, currentView) {
  const dialog = makeHelp(sections);
  document.body.append(dialog);
  let goingSince = -Infinity;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const isTyping = event.target.closest?.("input, textarea, select");
    if (event.key === "Escape" && isTyping) return event.target.blur();
    if (isTyping) return;
    const section = sections.find(({ key }) => key === event.key);
    if (section && performance.now() - goingSince < SECOND_KEY_MS) {
      goingSince = -Infinity;
      return navigate(`#/${section.name}`);
    }
    if (event.key === "g") goingSince = performance.now();
    else if (event.key === "?") dialog.showModal();
    else if (event.key === "/") focusFind(event);
    else if (!isPressing(event) && currentView()?.onKey?.(event.key)) event.preventDefault();
  });
  return () => dialog.showModal();
}

/** Whether the key is meant for the button or link that has the focus. */
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
