// One execution at an address of its own: its code, its result, and its output from the log, live while it runs.

import { get, kernelPath, remove } from "../live/api.js";
import { CellView } from "../widgets/cell_view.js";
import { badge, errorState, h, loading } from "../widgets/elements.js";
import { duration, moment, shortId } from "../widgets/format.js";
import { toneOf } from "../widgets/cell_view.js";
import { copyButton } from "../widgets/clipboard.js";
import { KernelSession } from "../live/kernel_session.js";
import { terminalElement } from "../widgets/terminal.js";
import { withErrorToast } from "../widgets/toasts.js";

export function executionView({ connection, route }) {
  const [, kernelId, , requestId] = route.parts;
  const view = new ExecutionView(connection, kernelId, requestId);
  return { element: view.element, close: () => view.close(), title: `Execution ${shortId(requestId)}` };
}

class ExecutionView {
  #connection;
  #kernelId;
  #requestId;
  #session = new KernelSession();
  #subscription = null;
  #view = null;
  #isPlanned = false;
  #isClosed = false;
  #body = h("div", { class: "card execution-card" }, loading("Reading from the log…"));
  #facts = h("dl", { class: "facts-grid" });
  #state = h("span");
  #cancel = h("button", { class: "button danger", type: "button", hidden: true, onclick: () => this.#onCancel() }, "Cancel");

  constructor(connection, kernelId, requestId) {
    this.#connection = connection;
    this.#kernelId = kernelId;
    this.#requestId = requestId;
    this.element = h("section", { class: "view" },
      h("div", { class: "view-head" },
        h("div", {}, h("a", { class: "crumb", href: `#/kernels/${encodeURIComponent(kernelId)}` }, `Kernel ${shortId(kernelId)}`),
          h("h1", {}, "Execution ", h("code", { class: "id" }, shortId(requestId)), " ", this.#state)),
        h("div", { class: "actions" }, this.#cancel, copyButton(() => location.href, "Copy link"),
          h("a", { class: "button", href: `#/kernels/${encodeURIComponent(kernelId)}` }, "Console"))),
      this.#facts, this.#body);
    this.#load();
  }

  close() {
    this.#isClosed = true;
    this.#subscription?.close();
    this.#view?.close();
  }

  async #load() {
    try {
      const found = await get(kernelPath(this.#kernelId, `/executions/${encodeURIComponent(this.#requestId)}`));
      if (!this.#isClosed) this.#follow(found);
    } catch (error) {
      const row = await this.#loadStored();
      if (row) this.#showStored(row);
      else this.#body.replaceChildren(errorState(error));
    }
  }

  #follow(found) {
    if (found.offset === null) return this.#body.replaceChildren(errorState(new Error("the log no longer has the beginning of this execution")));
    const wanted = { from: found.offset, policy: "lossless", filter: `headers.parent_id == ${JSON.stringify(this.#requestId)}` };
    this.#subscription = this.#connection.subscribe(found.topic, wanted, (messages) => this.#onMessages(messages));
  }

  #onMessages(messages) {
    for (const message of messages) {
      if (message.type === "event") this.#session.apply(message);
      else if (message.type === "error") this.#body.replaceChildren(errorState(new Error(message.error.message)));
    }
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.#isPlanned = false;
    const cell = this.#session.cell(this.#requestId);
    if (!cell || this.#isClosed) return;
    if (this.#view) this.#view.update();
    else {
      this.#view = new CellView(cell, this.#kernelId, () => {});
      this.#body.replaceChildren(this.#view.element);
    }
    this.#session.changed.clear();
    this.#cancel.hidden = cell.hasEnded;
    this.#state.replaceChildren(badge(cell.status, toneOf(cell.status)));
    const started = Date.parse(cell.startedAt);
    this.#showFacts([
      ["Queued", moment(cell.queuedAt)], ["Started", moment(cell.startedAt)], ["Ended", moment(cell.finishedAt)],
      ["Waited", cell.queuedAt ? duration(started - Date.parse(cell.queuedAt)) : "–"],
      ["Ran", duration(cell.ranMs)],
    ]);
  }

  #showFacts(facts) {
    this.#facts.replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  async #onCancel() {
    await withErrorToast(() => remove(kernelPath(this.#kernelId, `/executions/${encodeURIComponent(this.#requestId)}`)), this.#cancel);
  }

  // If the log no longer has it, the pipeline's table may.

  async #loadStored() {
    const where = `request_id = '${this.#requestId.replaceAll("'", "''")}'`;
    const found = await get("/tables/executions", { where, limit: 1 }).catch(() => null);
    return found?.rows[0] ?? null;
  }

  #showStored(row) {
    this.#state.replaceChildren(badge(row.status, toneOf(row.status)));
    this.#showFacts([["Started", moment(row.started)], ["Ended", moment(row.finished)], ["Waited", duration(row.queue_ms)], ["Ran", duration(row.run_ms)]]);
    this.#body.replaceChildren(
      h("p", { class: "note" }, "The log no longer has this execution; this is what the pipeline's table kept."),
      h("pre", { class: "code" }, row.code ?? ""),
      row.stdout ? terminalElement(row.stdout, "stdout") : "", row.stderr ? terminalElement(row.stderr, "stderr") : "",
      row.ename ? h("p", { class: "error-line" }, h("strong", {}, row.ename), `: ${row.evalue ?? ""}`) : "");
  }
}
