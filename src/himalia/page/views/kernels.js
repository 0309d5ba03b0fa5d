// Running kernels, ended ones, and forms to start and attach kernels.

import { get, post } from "../live/api.js";
import { badge, emptyState, errorState, h, loading } from "../widgets/elements.js";
import { ago, count, plural, shortId } from "../widgets/format.js";
import { kernelButtons, kernelState } from "../widgets/kernel_actions.js";
import { addSection } from "../router.js";
import { poll } from "../live/polling.js";
import { withErrorToast, toast } from "../widgets/toasts.js";
import { consoleView } from "./console.js";
import { executionView } from "./execution.js";

const PREFIX = "kernels.";
const PAST_SHOWN = 30;

addSection({ name: "kernels", title: "Kernels", key: "k", view: viewOf });

function viewOf(context) {
  const [, kernelId, what, requestId] = context.route.parts;
  if (!kernelId) return kernelsView(context);
  return what === "executions" && requestId ? executionView(context) : consoleView(context);
}

function kernelsView({ navigate }) {
  const running = h("div", { class: "cards" }, loading("Loading kernels…"));
  const past = h("div");
  const cards = new Map();
  const element = h("section", { class: "view" },
    h("div", { class: "view-head" }, h("h1", {}, "Kernels"), h("div", { class: "actions" }, startForm(navigate), attachForm(() => refresh()))),
    running, past);

  async function refresh(signal) {
    try {
      const [kernels, { topics }] = await Promise.all([get("/api/kernels", {}, signal), get("/topics", {}, signal)]);
      show(kernels);
      const ids = new Set(kernels.map((kernel) => kernel.topic));
      showPast(past, topics.filter((topic) => topic.name.startsWith(PREFIX) && !ids.has(topic.name)));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (!cards.size) running.replaceChildren(errorState(error));
    }
  }

  function show(kernels) {
    for (const id of cards.keys()) if (!kernels.some((kernel) => kernel.id === id)) cards.delete(id);
    const elements = kernels.map((kernel) => {
      if (!cards.has(kernel.id)) cards.set(kernel.id, new KernelCard(kernel, refresh));
      cards.get(kernel.id).show(kernel);
      return cards.get(kernel.id).element;
    });
    const wanted = elements.length ? elements
      : [emptyState("No kernel is running.", "Start one above: all of its output is stored, and any number of viewers can follow it.")];
    if (wanted.length !== running.children.length || wanted.some((one, index) => one !== running.children[index])) {
      running.replaceChildren(...wanted);
    }
  }

  return { element, close: poll(refresh, 1500), title: "Kernels" };
}

class KernelCard {
  #state = h("span");
  #facts = h("p", { class: "facts" });

  constructor(kernel, after) {
    const address = `#/kernels/${encodeURIComponent(kernel.id)}`;
    this.element = h("article", { class: "card kernel-card", "data-kernel": kernel.id },
      h("div", { class: "card-head" }, h("h2", {}, h("a", { href: address }, kernel.name), " ", h("code", { class: "id" }, shortId(kernel.id))), this.#state),
      this.#facts,
      h("div", { class: "actions" }, h("a", { class: "button primary", href: address }, "Open console"), ...kernelButtons(kernel, after)));
  }

  show(kernel) {
    const badges = [kernelState(kernel), kernel.foreign && badge("attached")].filter(Boolean);
    const text = badges.map((one) => one.textContent).join();
    if (this.#state.dataset.text !== text) {
      this.#state.dataset.text = text;
      this.#state.replaceChildren(...badges);
    }
    const facts = [
      `started ${ago(kernel.started)}`, `active ${ago(kernel.last_activity)}`, plural(kernel.connections, "viewer"),
      kernel.pid && `process ${kernel.pid}`, kernel.buffered_bytes > 0 && `${count(kernel.buffered_bytes)} bytes are waiting for the log`,
    ].filter(Boolean).join(" · ");
    if (this.#facts.textContent !== facts) this.#facts.textContent = facts;
  }
}

function showPast(place, topics) {
  const key = topics.map((topic) => `${topic.name}:${topic.end}`).join();
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (!topics.length) return place.replaceChildren();
  const newest = [...topics].sort((a, b) => b.created.localeCompare(a.created)).slice(0, PAST_SHOWN);
  place.replaceChildren(h("h2", { class: "section" }, "Ended, but still in the log"), h("ul", { class: "past card flush" }, ...newest.map((topic) => {
    const id = topic.name.slice(PREFIX.length);
    return h("li", {}, h("a", { class: "row-link", href: `#/kernels/${encodeURIComponent(id)}` }, shortId(id)),
      h("span", { class: "note" }, `${plural(topic.messages, "message")} · started ${ago(topic.created)}`));
  })));
}

function startForm(navigate) {
  const choice = h("select", { class: "input", "aria-label": "Which kernel to start" }, h("option", { value: "" }, "Default kernel"));
  const button = h("button", { class: "button primary", type: "submit" }, "Start");
  get("/api/kernelspecs").then(({ default: usual, kernelspecs }) => {
    choice.replaceChildren(...Object.values(kernelspecs).map(({ name, spec }) => h("option", { value: name }, spec.display_name)));
    choice.value = usual;
  }).catch(() => {});
  return h("form", { class: "inline-form", onsubmit: async (event) => {
    event.preventDefault();
    button.textContent = "Starting…";
    await withErrorToast(async () => {
      const kernel = await post("/api/kernels", choice.value ? { name: choice.value } : {});
      navigate(`#/kernels/${encodeURIComponent(kernel.id)}`);
    }, button);
    button.textContent = "Start";
  } }, choice, button);
}

function attachForm(after) {
  const file = h("input", { class: "input", placeholder: "kernel-….json, or empty for all", "aria-label": "Connection file of a kernel that something else started" });
  const button = h("button", { class: "button", type: "submit" }, "Attach");
  return h("details", { class: "drop" }, h("summary", { class: "button" }, "Attach…"),
    h("form", { class: "card drop-body", onsubmit: async (event) => {
      event.preventDefault();
      await withErrorToast(async () => {
        const name = file.value.trim();
        const found = await post("/api/kernels/attach", name ? { connection_file: name } : { all: true });
        if (name) toast("Attached", "good");
        else toast(`${plural(found.attached.length, "kernel")} attached, ${count(found.skipped.length)} skipped`, found.attached.length ? "good" : "");
        after();
      }, button);
    } }, h("p", { class: "note" }, "Listen to a kernel that JupyterLab or something else started, without disturbing it."), file, button));
}
