// What can be done to a kernel.

import { kernelPath, post, remove } from "../live/api.js";
import { badge, carefulButton, h } from "./elements.js";
import { attempt, toast } from "./toasts.js";

/** Buttons for one kernel; `after` is called when something was done. */
export function kernelButtons(kernel, after = () => {}) {
  const act = (work, said) => attempt(async () => {
    await work();
    toast(said, "good");
    after();
  });
  const interrupt = h("button", { class: "button", type: "button", title: "Interrupt what runs",
    onclick: () => act(() => post(kernelPath(kernel.id, "/interrupt")), "Interrupted") }, "Interrupt");
  if (kernel.foreign) {
    return [interrupt, carefulButton("Let go", "Stop listening?", () => act(() => remove(kernelPath(kernel.id)), "Let go"), "danger")];
  }
  return [
    interrupt,
    carefulButton("Restart", "Lose its state?", () => act(() => post(kernelPath(kernel.id, "/restart")), "Restarted")),
    carefulButton("Stop", "Really stop?", () => act(() => remove(kernelPath(kernel.id)), "Stopped"), "danger"),
  ];
}

/** State and health in a word or two. */
export function kernelState(kernel) {
  const state = kernel.execution_state;
  if (!kernel.responding && state !== "dead") return badge("no heartbeat", "bad");
  const tone = { idle: "ok", busy: "run", starting: "warn", restarting: "warn", dead: "bad" }[state] ?? "";
  return badge(kernel.queued ? `${state}, ${kernel.queued} waiting` : state, tone);
}
