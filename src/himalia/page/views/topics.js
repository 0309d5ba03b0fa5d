// All topics: rates, sizes, subscribers and their lag.

import { get, post } from "../live/api.js";
import { emptyState, errorState, h, loading, setText } from "../widgets/elements.js";
import { bytes, count, plural, rate } from "../widgets/format.js";
import { rateOf, sumOf } from "../live/metrics.js";
import { addSection } from "../router.js";
import { poll } from "../live/polling.js";
import { Sparkline } from "../widgets/sparkline.js";
import { withErrorToast } from "../widgets/toasts.js";
import { topicView } from "./topic.js";

const POLL_EVERY_MS = 1000;
const SHOWN_MAX = 500;

const NOTHING = new Array(60).fill(0);

addSection({
  name: "topics", title: "Topics", key: "t",
  view: (context) => (context.route.parts[1] ? topicView(context) : topicsView(context)),
});

function topicsView({ navigate }) {
  const rows = new Map();
  const search = h("input", {
    type: "search", class: "input", placeholder: "Find a topic", "aria-label": "Find a topic", "data-find": "",
    oninput: () => show(),
  });
  const body = h("tbody");
  const table = h("table", { class: "table topics", hidden: true },
    h("caption", { class: "visually-hidden" }, "Topics"),
    h("thead", {}, h("tr", {}, ...[
      ["Topic", ""], ["Rate", "number"], ["Last minute", "spark-cell"], ["Messages", "number"], ["Kept", "number wide"],
      ["Subscribers", "number"], ["Lag", "number"],
    ].map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
    body);
  const state = h("div", {}, loading("Looking for topics…"));
  const more = h("p", { class: "note", hidden: true });
  const element = h("section", { class: "view" },
    h("div", { class: "view-head" }, h("h1", {}, "Topics"), h("div", { class: "actions" }, search, createForm(navigate))),
    state, h("div", { class: "card flush scroll-x" }, table), more);
  let latest = new Map();

  async function refresh(signal) {
    try {
      const stats = await get("/stats", {}, signal);
      latest = new Map(Object.entries(stats.topics));
      show();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (!latest.size) state.replaceChildren(errorState(error));
    }
  }

  function show() {
    const wanted = search.value.trim().toLowerCase();
    const names = [...latest.keys()].filter((name) => name.toLowerCase().includes(wanted)).sort();
    state.replaceChildren(...(names.length ? [] : [nothing(wanted)]));
    table.hidden = table.parentElement.hidden = !names.length;
    more.hidden = names.length <= SHOWN_MAX;
    more.textContent = `${count(names.length - SHOWN_MAX)} more; say what you look for`;
    const shown = names.slice(0, SHOWN_MAX);
    for (const name of rows.keys()) if (!latest.has(name)) rows.delete(name);
    const elements = shown.map((name) => {
      if (!rows.has(name)) rows.set(name, new TopicRow(name));
      const row = rows.get(name);
      row.show(latest.get(name));
      return row.element;
    });
    if (elements.length !== body.children.length || elements.some((one, index) => one !== body.children[index])) {
      body.replaceChildren(...elements);
    }
  }

  return { element, close: poll(refresh, POLL_EVERY_MS), title: "Topics" };
}

function nothing(wanted) {
  if (wanted) return emptyState(`No topic has “${wanted}” in its name.`);
  return emptyState("There are no topics yet.",
    "Create one above, start a kernel, or publish with: himalia publish orders '{\"sku\": \"A-17\"}' --create");
}

class TopicRow {
  #cells;
  #spark = new Sparkline();
  #minute;

  constructor(name) {
    const cell = (kind) => h("td", { class: kind });
    this.#cells = { rate: cell("number"), messages: cell("number"), kept: cell("number wide"),
      subscribers: cell("number"), lag: cell("number") };
    const { rate: speed, messages, kept, subscribers, lag } = this.#cells;
    this.#minute = h("td", { class: "spark-cell" }, this.#spark.element);
    this.element = h("tr", { "data-topic": name },
      h("th", { scope: "row" }, h("a", { class: "row-link", href: `#/topics/${encodeURIComponent(name)}` }, name)),
      speed, this.#minute, messages, kept, subscribers, lag);
  }

  show(topic) {
    const perSecond = rateOf(topic);
    setText(this.#cells.rate, rate(perSecond));
    this.#cells.rate.classList.toggle("dim", perSecond === 0);
    this.#spark.show(topic.last_minute.length ? topic.last_minute : NOTHING);
    this.#minute.title = `${plural(sumOf(topic.last_minute), "message")} in the last minute`;
    setText(this.#cells.messages, count(topic.messages));
    setText(this.#cells.kept, bytes(topic.bytes));
    setText(this.#cells.subscribers, count(topic.subscribers));
    setText(this.#cells.lag, count(topic.lag));
    this.#cells.lag.classList.toggle("warn", topic.lag > 100);
  }
}

function createForm(navigate) {
  const name = h("input", { class: "input", placeholder: "new.topic", "aria-label": "Name of a new topic", size: "12" });
  const button = h("button", { class: "button", type: "submit" }, "Create");
  return h("form", { class: "inline-form", onsubmit: async (event) => {
    event.preventDefault();
    const wanted = name.value.trim();
    if (!wanted) return name.focus();
    if (await withErrorToast(() => post("/topics", { name: wanted }), button)) navigate(`#/topics/${encodeURIComponent(wanted)}`);
  } }, name, button);
}
