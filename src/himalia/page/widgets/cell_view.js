// A request and its outputs, as elements.

import { copy } from "./clipboard.js";
import { badge, h } from "./elements.js";
import { clock, count, duration, plural } from "./format.js";
import { viewOf } from "./outputs.js";

const CODE_LINES = 40;
const CODE_CHARS = 20_000;
const TONES = { ok: "ok", error: "bad", died: "bad", timeout: "bad", stale: "bad", aborted: "warn", cancelled: "warn", running: "run", queued: "" };

export const toneOf = (status) => TONES[status] ?? "";

/** The address of a request, which can be shared. */
export const addressOf = (kernelId, requestId) => `#/kernels/${encodeURIComponent(kernelId)}/executions/${encodeURIComponent(requestId)}`;

/** `answer(value)` is called with the line that the user typed when the code requests input. */
export class CellView {
  #cell;
  #kernelId;
  #answer;
  #prompt = h("span", { class: "prompt in" });
  #code = h("pre", { class: "code", tabindex: "0" });
  #codeShown = null;
  #meta = h("div", { class: "cell-meta" });
  #outputs = h("div", { class: "outputs" });
  #views = [];
  #question = null;
  #head;

  constructor(cell, kernelId, answer) {
    this.#cell = cell;
    this.#kernelId = kernelId;
    this.#answer = answer;
    this.#head = h("div", { class: "cell-head" }, this.#prompt, this.#code, this.#meta);
    this.element = h("article", { class: "cell", "data-request": cell.requestId }, this.#head, this.#outputs);
    this.update();
  }

  update() {
    const cell = this.#cell;
    this.element.dataset.status = cell.status;
    this.#head.hidden = cell.isLoose;
    this.element.classList.toggle("loose", cell.isLoose);
    if (cell.isLoose) return this.#showOutputs();
    this.#prompt.textContent = `In [${cell.count !== null ? count(cell.count) : cell.hasEnded ? " " : "*"}]`;
    this.#showCode(cell.code ?? "");
    this.#showMeta();
    this.#showOutputs();
    this.#showQuestion();
  }

  close() {
    for (const view of this.#views) view.close();
  }

  #showCode(code) {
    if (code === this.#codeShown) return;
    this.#codeShown = code;
    const lines = code.split("\n");
    const isLong = lines.length > CODE_LINES || code.length > CODE_CHARS;
    this.#code.textContent = isLong ? lines.slice(0, CODE_LINES).join("\n").slice(0, CODE_CHARS) : code;
    if (this.#cell.code === null) this.#code.textContent = "(the log no longer has the code)";
    if (!isLong) return;
    const all = h("button", { class: "button quiet tiny", type: "button", onclick: () => {
      this.#code.textContent = code;
    } }, `Show all ${plural(lines.length, "line")}`);
    this.#code.append("\n", all);
  }

  #showMeta() {
    const { status, startedAt, finishedAt, requestId, reason, queuedAt, ranMs } = this.#cell;
    const key = [status, startedAt, finishedAt, reason].join("|");
    if (this.#meta.dataset.key === key) return;
    this.#meta.dataset.key = key;
    const ran = ranMs === null ? null : duration(ranMs);
    const address = addressOf(this.#kernelId, requestId);
    this.#meta.replaceChildren(
      ...[h("button", { class: "button quiet tiny", type: "button", title: "Copy the code", onclick: () => copy(this.#cell.code ?? "") }, "Copy"),
        h("a", { class: "button quiet tiny", href: address, title: "The address of this execution" }, "Open"),
        ran && h("span", { class: "note", title: `Queued ${clock(queuedAt ?? startedAt)}` }, ran),
        status === "ok" ? h("span", { class: "tick", title: "ok", role: "img", "aria-label": "ok" }, "✓") : badge(status, toneOf(status)),
      ].filter(Boolean));
    this.#showReason(reason);
  }

  #showReason(reason) {
    this.element.querySelector(".reason")?.remove();
    const isShown = reason && !["ok", "error"].includes(this.#cell.status);
    if (isShown) this.#outputs.after(h("p", { class: "reason note" }, reason));
  }

  #showOutputs() {
    const { outputs, isReleased, omitted } = this.#cell;
    // Outputs are only appended, or all removed at once.
    const same = this.#views.findIndex((view, index) => view.output !== outputs[index]);
    const kept = same === -1 ? this.#views.length : same;
    for (const view of this.#views.splice(kept)) {
      view.close();
      view.element.remove();
    }
    for (const view of this.#views) view.update();
    for (const output of outputs.slice(kept)) {
      const view = viewOf(output, this.#cell);
      this.#views.push(view);
      this.#outputs.append(view.element);
      requestAnimationFrame(() => view.placed?.());
    }
    this.#outputs.querySelector(".omitted")?.remove();
    const note = isReleased ? "This page no longer keeps its output; open the execution to read it from the log."
      : omitted ? `${plural(omitted, "further output")} are only in the log.` : "";
    if (note) this.#outputs.append(h("p", { class: "note omitted" }, note));
  }

  #showQuestion() {
    const { prompt } = this.#cell;
    if (!prompt === !this.#question) return;
    this.#question?.remove();
    this.#question = null;
    if (!prompt) return;
    const input = h("input", { class: "input mono grow", type: prompt.isPassword ? "password" : "text", "aria-label": prompt.text || "Input for the running code", autocomplete: "off" });
    this.#question = h("form", { class: "inline-form question", onsubmit: (event) => {
      event.preventDefault();
      this.#answer(input.value);
    } }, h("label", {}, prompt.text || "Input:"), input, h("button", { class: "button primary", type: "submit" }, "Answer"));
    this.#outputs.after(this.#question);
  }
}
