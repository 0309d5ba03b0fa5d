// The tables of the pipeline, and how far it lags behind the log.

import { get, topicPath } from "../live/api.js";
import { addressOf } from "../widgets/cell_view.js";
import { errorCounts, executions, percentiles, throughput } from "../widgets/charts.js";
import { emptyState, errorState, h, loading, setText } from "../widgets/elements.js";
import { ago, bytes, clipped, count, duration, moment, plural, shortId } from "../widgets/format.js";
import { PlotFrame } from "../widgets/frames.js";
import { merged, percentile } from "../live/histogram.js";
import { addSection } from "../router.js";
import { poll } from "../live/polling.js";
import { Sparkline } from "../widgets/sparkline.js";
import { Tile } from "../widgets/tiles.js";

const POLL_EVERY_MS = 5000;
const POSITIONS = "pipeline.positions";

/** The number of records of each topic that the pipeline has not read, from the positions that it published. */
export function lagOf(topics, positions) {
  return topics.filter((topic) => !topic.name.startsWith("pipeline.")).map((topic) => {
    const at = positions[topic.name];
    const isSame = at && at.epoch === topic.epoch;
    return { name: topic.name, lag: topic.end - Math.min(Math.max(isSame ? at.offset : topic.first, topic.first), topic.end) };
  });
}

addSection({ name: "pipeline", title: "Pipeline", key: "p", view: pipelineView });

function pipelineView() {
  const view = new PipelineView();
  return { element: view.element, close: () => view.close(), title: "Pipeline" };
}

class PipelineView {
  #tiles = {
    lag: new Tile("Behind the log", { spark: new Sparkline(60) }),
    read: new Tile("Last read"),
    messages: new Tile("Records stored"),
    runs: new Tile("Executions"),
    errors: new Tile("Errors"),
  };
  #state = h("div", {}, loading("Loading the tables…"));
  #content = h("div", { hidden: true });
  #plots;
  #plotPlace;
  #behind = h("div");
  #tables = h("tbody");
  #errors = h("div");
  #kernels = h("div");
  #stop;

  constructor() {
    this.#plots = new PlotFrame("Charts of the pipeline", { onMissing: () => this.#plotPlace.replaceChildren(
      h("p", { class: "note" }, "Charts need Plotly on the server: pip install 'himalia[page]'")) });
    this.#plotPlace = h("div", { class: "card plots" }, this.#plots.element);
    this.#content.append(
      h("div", { class: "tiles" }, ...Object.values(this.#tiles).map((tile) => tile.element)),
      this.#behind, this.#plotPlace,
      h("div", { class: "columns" },
        h("div", {}, h("h2", { class: "section" }, "Errors, with the latest example"), this.#errors),
        h("div", {}, h("h2", { class: "section" }, "Duration of executions"), this.#kernels)),
      h("h2", { class: "section" }, "Tables"),
      h("div", { class: "card flush scroll-x" }, h("table", { class: "table" }, h("caption", { class: "visually-hidden" }, "Tables"),
        h("thead", {}, h("tr", {}, ...["Table", "A row is", "Rows", "Size", "Updated"].map((title) => h("th", { scope: "col", class: ["Rows", "Size"].includes(title) ? "number" : "" }, title)))), this.#tables)));
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h1", {}, "Pipeline")), this.#state, this.#content);
    this.#stop = poll((signal) => this.#refresh(signal), POLL_EVERY_MS);
  }

  close() {
    this.#stop();
    this.#plots.close();
  }

  async #refresh(signal) {
    try {
      const { tables } = await get("/tables", {}, signal);
      if (!tables.length) return this.#showState(emptyState("The pipeline has not run yet.", "It turns the log into tables. 'himalia up' starts it with the server, and it takes half a minute; with 'himalia serve', run: himalia pipeline run --every 5s"));
      const rows = (name, params) => get(`/tables/${name}`, { limit: 2000, ...params }, signal).then((found) => found.rows, () => []);
      const { topics } = await get("/topics", {}, signal);
      const isPublished = topics.some((topic) => topic.name === POSITIONS && topic.end > 0);
      const [activity, health, errors, positions] = await Promise.all([
        rows("topic_activity", { columns: "minute,topic,messages" }),
        rows("kernel_health", { columns: "kernel_id,window_start,executions,failures,histogram" }),
        rows("errors", { columns: "ename,count,last_evalue,last_kernel_id,last_request_id,last_ts" }),
        isPublished ? get(topicPath(POSITIONS, "/messages"), { last: 1 }, signal) : null,
      ]);
      this.#show({ tables, activity, health, errors: digest(errors), topics, reported: positions?.messages[0] ?? null });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.#showState(errorState(error));
    }
  }

  #showState(element) {
    this.#content.hidden = true;
    this.#state.replaceChildren(element);
  }

  #show({ tables, activity, health, errors, topics, reported }) {
    this.#content.hidden = false;
    this.#state.replaceChildren();
    const kernels = byKernel(health);
    this.#showLag(topics, reported);
    this.#showTiles(tables, errors);
    this.#plots.show((theme) => [throughput(theme, activity), percentiles(theme, kernels), executions(theme, health), errorCounts(theme, errors)]);
    this.#tables.replaceChildren(...tables.map((table) => h("tr", {}, h("th", { scope: "row", class: "mono" }, table.name), h("td", { class: "note" }, table.description),
      h("td", { class: "number" }, table.rows === null ? "–" : count(table.rows)), h("td", { class: "number nowrap" }, bytes(table.bytes)), h("td", { class: "nowrap" }, ago(table.updated)))));
    this.#errors.replaceChildren(errors.length ? errorList(errors) : h("p", { class: "card note" }, "No execution has failed."));
    this.#kernels.replaceChildren(kernels.length ? kernelTable(kernels) : h("p", { class: "card note" }, "Nothing was executed yet."));
  }

  #showLag(topics, reported) {
    const behind = lagOf(topics, reported?.message.payload?.positions ?? {});
    const total = behind.reduce((sum, { lag }) => sum + lag, 0);
    const note = reported ? (total === 1 ? "record" : "records") : "the pipeline has not published its position";
    this.#tiles.lag.show(reported ? count(total) : "–", note, total);
    this.#tiles.read.show(reported ? ago(reported.ts) : "–", reported ? moment(reported.ts) : "");
    const most = behind.filter(({ lag }) => lag > 0).sort((a, b) => b.lag - a.lag).slice(0, 5);
    setText(this.#behind, reported && most.length ? `Most behind: ${most.map(({ name, lag }) => `${name} ${count(lag)}`).join(", ")}` : "");
    this.#behind.className = "note behind";
  }

  #showTiles(tables, errors) {
    const rows = Object.fromEntries(tables.map((table) => [table.name, table.rows ?? 0]));
    this.#tiles.messages.show(count(rows.messages ?? 0), "in the table messages");
    this.#tiles.runs.show(count(rows.executions ?? 0), "in the table executions");
    this.#tiles.errors.show(count(errors.reduce((sum, error) => sum + error.count, 0)), `of ${plural(errors.length, "kind")}`);
  }
}

/** One row for each error, with its latest example; the most frequent first. */
function digest(rows) {
  const found = new Map();
  for (const row of rows) {
    const seen = found.get(row.ename);
    const latest = !seen || row.last_ts > seen.last_ts ? row : seen;
    found.set(row.ename, { ...latest, count: (seen?.count ?? 0) + row.count });
  }
  return [...found.values()].sort((a, b) => b.count - a.count);
}

function byKernel(health) {
  const groups = Map.groupBy ? Map.groupBy(health, (row) => row.kernel_id) : grouped(health);
  return [...groups].map(([kernel, rows]) => {
    const histogram = merged(rows.map((row) => row.histogram));
    const sum = (key) => rows.reduce((total, row) => total + row[key], 0);
    return { kernel, executions: sum("executions"), failures: sum("failures"), p50: percentile(histogram, 0.5), p95: percentile(histogram, 0.95), p99: percentile(histogram, 0.99) };
  }).sort((a, b) => b.executions - a.executions).slice(0, 12);
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.kernel_id, [...(groups.get(row.kernel_id) ?? []), row]);
  return groups;
}

function errorList(errors) {
  return h("ul", { class: "card flush digest" }, ...errors.slice(0, 10).map((error) => h("li", {},
    h("span", { class: "digest-count" }, count(error.count)),
    h("div", {}, h("a", { class: "row-link", href: addressOf(error.last_kernel_id ?? "", error.last_request_id ?? "") }, error.ename),
      h("p", { class: "note" }, clipped(error.last_evalue ?? "", 140), " · ", moment(error.last_ts))))));
}

function kernelTable(kernels) {
  return h("div", { class: "card flush scroll-x" }, h("table", { class: "table" }, h("caption", { class: "visually-hidden" }, "Durations by kernel"),
    h("thead", {}, h("tr", {}, ...["Kernel", "Runs", "Failed", "p50", "p95", "p99"].map((title, index) => h("th", { scope: "col", class: index ? "number" : "" }, title)))),
    h("tbody", {}, ...kernels.map((one) => h("tr", {}, h("th", { scope: "row" }, h("a", { class: "mono", href: `#/executions?kernel=${encodeURIComponent(one.kernel)}` }, shortId(one.kernel))),
      ...[count(one.executions), count(one.failures), duration(one.p50), duration(one.p95), duration(one.p99)].map((text) => h("td", { class: "number nowrap" }, text)))))));
}
