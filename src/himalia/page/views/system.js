// The state of the server: health, figures, subscribers, errors.

import { get, health, text } from "../live/api.js";
import { errorState, h, loading, setText } from "../widgets/elements.js";
import { bytes, count, duration, plural, rate } from "../widgets/format.js";
import { parseMetrics, quantile, valueOf } from "../live/metrics.js";
import { addSection } from "../router.js";
import { poll } from "../live/polling.js";
import { Sparkline } from "../widgets/sparkline.js";
import { Tile } from "../widgets/tiles.js";

const POLL_EVERY_MS = 2000;
const SUBSCRIBERS_SHOWN = 200;

addSection({ name: "system", title: "System", key: "s", view: systemView });

function systemView() {
  const tiles = {
    published: new Tile("Published", { spark: new Sparkline(60) }),
    delivered: new Tile("Delivered", { spark: new Sparkline(60) }),
    commit: new Tile("Commit time"),
    disk: new Tile("Log on disk"),
    connections: new Tile("Connections"),
    uptime: new Tile("Uptime"),
  };
  const verdict = h("div", { class: "card verdict" }, loading("Loading…"));
  const facts = h("dl", { class: "facts-grid card" });
  const subscribers = h("div");
  const errors = h("div");
  const element = h("section", { class: "view" },
    h("div", { class: "view-head" }, h("h1", {}, "System"),
      h("div", { class: "actions" }, ...[["/docs", "REST"], ["/asyncapi.json", "AsyncAPI"], ["/metrics", "Metrics"]].map(([href, name]) => h("a", { class: "button", href, target: "_blank", rel: "noopener" }, name)))),
    verdict, h("div", { class: "tiles" }, ...Object.values(tiles).map((tile) => tile.element)), facts,
    h("h2", { class: "section" }, "Subscribers"), subscribers, h("h2", { class: "section" }, "Errors sent to clients"), errors);

  async function refresh(signal) {
    try {
      const [state, stats, samples] = await Promise.all([health(), get("/stats", {}, signal), text("/metrics").then(parseMetrics)]);
      showVerdict(verdict, state, stats);
      showTiles(tiles, state, stats, samples);
      showFacts(facts, state, stats, samples);
      showSubscribers(subscribers, stats.subscribers);
      showErrors(errors, samples);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      verdict.className = "card verdict bad";
      verdict.replaceChildren(errorState(error));
    }
  }

  return { element, close: poll(refresh, POLL_EVERY_MS), title: "System" };
}

function showVerdict(place, state, stats) {
  const isHealthy = state.status === "ok";
  place.className = `card verdict ${isHealthy ? "ok" : "bad"}`;
  const lagging = stats.subscribers.filter((one) => one.lag > 1000).length;
  const remarks = [
    ...(state.warnings ?? []).map((warning) => `Warning: ${warning}.`),
    lagging && `${plural(lagging, "subscriber")} more than 1,000 records behind.`,
    stats.dropped && `${plural(stats.dropped, "record")} skipped for slow subscribers since the start; they are in the log.`,
  ].filter(Boolean);
  place.replaceChildren(h("p", { class: "verdict-title" }, isHealthy ? "Healthy: the log stores and delivers." : "The log cannot store."),
    ...(isHealthy ? [] : [h("p", {}, state.problem ?? "The server gave no reason.")]), ...remarks.map((remark) => h("p", { class: "note" }, remark)));
}

function showTiles(tiles, state, stats, samples) {
  tiles.published.show(rate(stats.rates.published), `${count(stats.published)} since the start`, stats.last_minute.published);
  tiles.delivered.show(rate(stats.rates.delivered), `${count(stats.delivered)} since the start`, stats.last_minute.delivered);
  const [half, most] = [0.5, 0.99].map((share) => quantile(samples, "himalia_commit_seconds", share));
  const commits = valueOf(samples, "himalia_commits_total") ?? 0;
  tiles.commit.show(most === null ? "–" : `≤ ${duration(most * 1000)}`, most === null ? "no commits yet" : `for 99% of ${count(commits)}; half ≤ ${duration(half * 1000)}`);
  tiles.disk.show(bytes(valueOf(samples, "himalia_log_bytes")), state.log ?? "");
  tiles.connections.show(count(stats.connections), plural(stats.subscribers.length, "subscription"));
  tiles.uptime.show(duration(stats.uptime_s * 1000), `Himalia ${state.version ?? "?"}, protocol ${state.protocol ?? "?"}`);
}

function showFacts(place, state, stats, samples) {
  const facts = [
    ["Topics", count(state.topics ?? 0)], ["Kernels", count(stats.kernels)], ["Duplicates recognised", count(stats.duplicates)],
    ["Skipped for slow subscribers", count(stats.dropped)], ["Waiting for a commit", count(stats.in_flight)],
    ["Unsent bytes", bytes(stats.queue_bytes)], ["Failed commits", count(valueOf(samples, "himalia_log_failures_total") ?? 0)],
    ["Topics held for the pipeline", count(valueOf(samples, "himalia_retention_waiting_topics") ?? 0)],
  ];
  if (place.children.length !== facts.length) place.replaceChildren(...facts.map(([name]) => h("div", {}, h("dt", {}, name), h("dd"))));
  facts.forEach(([, value], index) => setText(place.children[index].lastChild, value));
}

function showSubscribers(place, subscribers) {
  if (!subscribers.length) return place.replaceChildren(h("p", { class: "card note" }, "There are no subscribers."));
  const worst = [...subscribers].sort((a, b) => b.lag - a.lag).slice(0, SUBSCRIBERS_SHOWN);
  place.replaceChildren(h("div", { class: "card flush scroll-x" }, h("table", { class: "table" }, h("caption", { class: "visually-hidden" }, "Subscribers"),
    h("thead", {}, h("tr", {}, ...["Client", "Topic", "Policy", "Sent", "Skipped", "Lag"].map((title, index) => h("th", { scope: "col", class: index > 2 ? "number" : "" }, title)))),
    h("tbody", {}, ...worst.map((one) => h("tr", {}, h("th", { scope: "row", class: "mono clip" }, one.client_id), h("td", { class: "mono clip" }, one.topic), h("td", {}, one.policy),
      ...[one.sent, one.dropped, one.lag].map((number) => h("td", { class: "number" }, count(number)))))))));
}

function showErrors(place, samples) {
  const found = samples.filter((sample) => sample.name === "himalia_errors_total").sort((a, b) => b.value - a.value);
  place.replaceChildren(found.length
    ? h("ul", { class: "card flush digest" }, ...found.map(({ labels, value }) => h("li", {}, h("span", { class: "digest-count" }, count(value)), h("code", {}, labels.code))))
    : h("p", { class: "card note" }, "None since the start."));
}
