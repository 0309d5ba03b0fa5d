// A kernel's console: its session from the log, live, and a line to run code.

import { get, kernelPath, post, topicPath } from "../live/api.js";
import { CellView } from "../widgets/cell_view.js";
import { emptyState, h } from "../widgets/elements.js";
import { ago, clock, count, shortId } from "../widgets/format.js";
import { InputHistory } from "../widgets/input_history.js";
import { kernelButtons, kernelState } from "../widgets/kernel_actions.js";
import { poll } from "../live/polling.js";
import { trackUserScroll } from "../widgets/scrolling.js";
import { KernelSession } from "../live/kernel_session.js";
import { withErrorToast } from "../widgets/toasts.js";

const ENTRIES_SHOWN = 100;

export function consoleView({ connection, route }) {
  const view = new ConsoleView(connection, route.parts[1]);
  return { element: view.element, close: () => view.close(), title: `Kernel ${shortId(route.parts[1])}`, focus: () => view.focus() };
}

class ConsoleView {
  #connection;
  #id;
  #session = new KernelSession();
  #views = new Map();
  #limit = ENTRIES_SHOWN;
  #subscription;
  #epoch = null;
  #isPlanned = false;
  #untilOffset = null; // the end of the topic when the view was opened: records before it are history
  #stopPolling;
  #log = h("div", { class: "console-log" });
  #inner = h("div", { class: "console-inner", role: "log", "aria-label": "Session" });
  #earlier = h("button", { class: "button more", type: "button", hidden: true, onclick: () => this.#showEarlier() });
  #reading = h("p", { class: "note reading", hidden: true });
  #state = h("span");
  #facts = h("p", { class: "facts" });
  #buttons = h("div", { class: "actions" });
  #form;
  #input;
  #history = new InputHistory(() => this.#session.codes());
  #followsEnd = true;
  #isUserScroll = trackUserScroll(this.#log);
  #resizes = new ResizeObserver(() => this.#scrollToEnd());

  constructor(connection, id) {
    this.#connection = connection;
    this.#id = id;
    this.element = this.#layout();
    this.#log.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    this.#resizes.observe(this.#inner);
    this.#resizes.observe(this.#log);
    this.#stopPolling = poll((signal) => this.#refresh(signal), 1500);
    this.#follow();
  }

  focus() {
    if (!this.#form.hidden) this.#input.focus({ preventScroll: true });
  }

  close() {
    this.#subscription?.close();
    this.#stopPolling();
    this.#resizes.disconnect();
    for (const view of this.#views.values()) view.close?.();
  }

  get #topic() {
    return `kernels.${this.#id}`;
  }

  // The log

  #follow() {
    get(topicPath(this.#topic, "/messages"), { last: 1 }).then(({ end }) => {
      this.#untilOffset = end;
      if (end === 0) this.#plan();
    }).catch((error) => this.#inner.replaceChildren(emptyState(error.message)));
    this.#subscription = this.#connection.subscribe(this.#topic, { from: 0, policy: "lossless" }, (messages) => this.#onMessages(messages));
  }

  #onMessages(messages) {
    for (const message of messages) {
      if (message.type === "event") this.#session.apply(message);
      else if (message.type === "ack") this.#onAck(message);
      else if (message.type === "error") this.#session.note(message.error.message, "bad", message.ts);
      else if (message.msg === "gap") this.#session.note(`The log no longer has the records before offset ${count(message.first)}`, "warn");
      else if (message.msg === "topic_deleted") this.#session.note("The kernel's topic was deleted", "bad", message.ts);
    }
    this.#plan();
  }

  /** After a reconnection the topic may be another one of the same name; then the view starts again. */
  #onAck(ack) {
    if (this.#epoch !== null && ack.epoch !== this.#epoch) this.#reset();
    this.#epoch = ack.epoch ?? this.#epoch;
  }

  #reset() {
    for (const view of this.#views.values()) view.close?.();
    this.#views.clear();
    this.#session = new KernelSession();
    this.#inner.replaceChildren();
  }

  // Showing it

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.#isPlanned = false;
    const { entries, changed } = this.#session;
    const start = Math.max(entries.length - this.#limit, 0);
    for (const [entry, view] of this.#views) {
      if (changed.has(entry)) view.update();
    }
    changed.clear();
    this.#removeBefore(start);
    for (const entry of entries.slice(start)) {
      if (this.#views.has(entry)) continue;
      const view = this.#viewOf(entry);
      this.#views.set(entry, view);
      this.#inner.append(view.element);
    }
    this.#earlier.hidden = start === 0;
    this.#earlier.textContent = `Show earlier (${count(start)})`;
    this.#showReading();
    this.#scrollToEnd();
  }

  #removeBefore(start) {
    if (this.#views.size < this.#limit) return;
    for (const entry of this.#session.entries.slice(0, start)) {
      const view = this.#views.get(entry);
      if (!view) continue;
      view.close?.();
      view.element.remove();
      this.#views.delete(entry);
    }
  }

  #viewOf(entry) {
    if (entry.kind === "note") {
      const time = entry.ts && h("time", { datetime: entry.ts }, clock(entry.ts));
      return { element: h("p", { class: `event ${entry.tone}` }, h("span", {}, entry.text), time || ""), update() {} };
    }
    return new CellView(entry, this.#id, (value) => withErrorToast(() => post(kernelPath(this.#id, "/input"), { value })));
  }

  #showReading() {
    const isReading = this.#untilOffset !== null && (this.#subscription.next ?? 0) < this.#untilOffset;
    this.#reading.hidden = !isReading;
    if (isReading) this.#reading.textContent = `Reading the log: ${count(this.#subscription.next ?? 0)} of ${count(this.#untilOffset)} records`;
    else this.element.dataset.ready = "true";
  }

  #showEarlier() {
    this.#limit += ENTRIES_SHOWN;
    for (const view of this.#views.values()) {
      view.close?.();
      view.element.remove();
    }
    this.#views.clear();
    this.#followsEnd = false;
    this.#plan();
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    if (scrollHeight - scrollTop - clientHeight < 60) this.#followsEnd = true;
    else if (this.#isUserScroll()) this.#followsEnd = false;
  }

  #scrollToEnd() {
    if (this.#followsEnd) this.#log.scrollTop = this.#log.scrollHeight;
  }

  // The kernel

  async #refresh(signal) {
    try {
      this.#showKernel(await get(kernelPath(this.#id), {}, signal));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error.code === "KERNEL_NOT_FOUND") this.#showGone();
    }
  }

  #showKernel(kernel) {
    this.#state.replaceChildren(kernelState(kernel));
    this.#facts.replaceChildren(`${kernel.name} · `, h("span", { class: "wide" }, `${kernel.id} · `), `started ${ago(kernel.started)} · ${kernel.connections} viewing`);
    this.#form.hidden = kernel.execution_state === "dead";
    if (!this.#buttons.children.length) this.#buttons.append(...kernelButtons(kernel, () => {}));
  }

  #showGone() {
    this.#state.replaceChildren(h("span", { class: "badge" }, "ended"));
    this.#facts.textContent = `${this.#id} · it no longer runs; this is its session from the log`;
    this.#buttons.replaceChildren();
    this.#form.hidden = true;
  }

  async #run() {
    const code = this.#input.value;
    if (!code.trim()) return;
    this.#input.value = "";
    this.#history.reset();
    this.#followsEnd = true;
    const ran = await withErrorToast(() => post(kernelPath(this.#id, "/execute"), { code, allow_stdin: true }));
    if (!ran && !this.#input.value) this.#input.value = code;
  }

  #onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.#run();
      return;
    }
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && this.#history.move(this.#input, step)) event.preventDefault();
  }

  #layout() {
    this.#input = h("textarea", {
      class: "input mono code-input", rows: "1", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "data-find": "",
      "aria-label": "Code to run", placeholder: "Run code: Enter runs it, Shift+Enter adds a line, ↑ recalls earlier code",
      onkeydown: (event) => this.#onKey(event),
    });
    this.#form = h("form", { class: "console-input", onsubmit: (event) => {
      event.preventDefault();
      this.#run();
    } }, h("span", { class: "prompt in", "aria-hidden": "true" }, "›"), this.#input, h("button", { class: "button primary", type: "submit" }, "Run"));
    this.#log.append(this.#earlier, this.#reading, this.#inner);
    return h("section", { class: "view fill console" },
      h("div", { class: "view-head" },
        h("div", {}, h("a", { class: "crumb", href: "#/kernels" }, "Kernels"), h("h1", {}, "Console ", h("code", { class: "id" }, shortId(this.#id)), " ", this.#state), this.#facts),
        h("div", { class: "actions" }, h("a", { class: "button", href: `#/topics/${encodeURIComponent(this.#topic)}` }, "Topic"), this.#buttons)),
      h("div", { class: "card flush console-card" }, this.#log, this.#form));
  }
}
