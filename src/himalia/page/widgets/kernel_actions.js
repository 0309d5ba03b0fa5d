// The buttons and the state of a kernel.

import { kernelPath, post, remove } from "../live/api.js";
import { badge, confirmButton, h } from "./elements.js";
import { withErrorToast, toast } from "./toasts.js";

/** Buttons for one kernel; `after` is called after each action. */
export function kernelButtons(kernel, after = () => {}) {
  const act = (work, message) => withErrorToast(async () => {
    await work();
    toast(message, "good");
    after();
  });
  const interrupt = h("button", { class: "button", type: "button", title: "Interrupt the running code",
    onclick: () => act(() => post(kernelPath(kernel.id, "/interrupt")), "Interrupted") }, "Interrupt");
  if (kernel.foreign) {
    return [interrupt, confirmButton("Detach", "Stop listening?", () => act(() => remove(kernelPath(kernel.id)), "Detached"), "danger")];
  }
  return [
    interrupt,
    confirmButton("Restart", "Discard its state?", () => act(() => post(kernelPath(kernel.id, "/restart")), "Restarted")),
    confirmButton("Stop", "Really stop?", () => act(() => remove(kernelPath(kernel.id)), "Stopped"), "danger"),
  ];
}

/** State and health in a word or two. */
export function kernelState(kernel) {
  const state = kernel.execution_state;
  if (!kernel.responding && state !== "dead") return badge("no heartbeat", "bad");
  const tone = { idle: "ok", busy: "run", starting: "warn", restarting: "warn", dead: "bad" }[state] ?? "";
  return badge(kernel.queued ? `${state}, ${kernel.queued} waiting` : state, tone);
}
