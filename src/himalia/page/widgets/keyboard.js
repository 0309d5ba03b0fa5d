// Keys, and a dialogue that says which there are.

import { h } from "./elements.js";
import { navigate } from "../router.js";

const PLACES = { t: "#/topics", k: "#/kernels", e: "#/executions", p: "#/pipeline", s: "#/system" };
const SECOND_KEY_MS = 1500;
const HELP = [
  ["g then t, k, e, p, s", "go to Topics, Kernels, Executions, Pipeline, System"],
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

/** `currentView()` may have `onKey(key)`, which says whether it took the key. */
export function startKeyboard(currentView) {
  const dialog = makeHelp();
  document.body.append(dialog);
  let goingSince = -Infinity;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const isTyping = event.target.closest?.("input, textarea, select");
    if (event.key === "Escape" && isTyping) return event.target.blur();
    if (isTyping) return;
    if (performance.now() - goingSince < SECOND_KEY_MS && PLACES[event.key]) {
      goingSince = -Infinity;
      return navigate(PLACES[event.key]);
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

function makeHelp() {
  const dialog = h("dialog", { class: "help card", "aria-label": "Keys" },
    h("h2", {}, "Keys"), h("dl", { class: "keys" }, ...HELP.flatMap(([keys, what]) => [h("dt", {}, keys), h("dd", {}, what)])));
  dialog.append(h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Close"));
  return dialog;
}
