// The pipeline's table of executions, searched on the server.

import { get } from "../live/api.js";
import { addressOf, toneOf } from "../widgets/cell_view.js";
import { badge, emptyState, errorState, h, loading } from "../widgets/elements.js";
import { clipped, count, duration, moment, shortId } from "../widgets/format.js";
import { addSection } from "../router.js";
import { poll } from "../live/polling.js";

const PAGE = 100;
const COLUMNS = "kernel_id,request_id,code,status,started,queued,run_ms,ename,evalue,username,execution_count";
const STATUSES = ["ok", "error", "running", "aborted", "died", "timeout", "cancelled", "stale"];
const POLL_EVERY_MS = 5000;

/** The search as an SQL condition. Text is compared literally: quotes are doubled, and `strpos` has no wildcards. */
export function conditionOf({ words = "", status = "", kernel = "" }) {
  const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
  const parts = [];
  if (status) parts.push(`status = ${quoted(status)}`);
  if (kernel) parts.push(`kernel_id = ${quoted(kernel)}`);
  for (const word of words.toLowerCase().split(/\s+/).filter(Boolean)) {
    const columns = ["code", "ename", "evalue", "kernel_id", "request_id", "username"];
    parts.push(`(${columns.map((column) => `strpos(lower(coalesce(${column}, '')), ${quoted(word)}) > 0`).join(" or ")})`);
  }
  return parts.join(" and ");
}

addSection({ name: "executions", title: "Executions", key: "e", view: executionsView });

function executionsView({ navigate, route }) {
  const params = route.params;
  let limit = PAGE;
  const words = h("input", { type: "search", class: "input grow", "data-find": "", value: params.get("q") ?? "", placeholder: "Search code, errors, kernels, callers", "aria-label": "Search executions" });
  const status = h("select", { class: "input", "aria-label": "Status", onchange: () => apply() }, h("option", { value: "" }, "Any status"),
    ...STATUSES.map((one) => h("option", { value: one }, one)));
  status.value = params.get("status") ?? "";
  const body = h("tbody");
  const table = h("div", { class: "card flush scroll-x", hidden: true }, h("table", { class: "table executions" },
    h("caption", { class: "visually-hidden" }, "Executions"),
    h("thead", {}, h("tr", {}, ...["Started", "Status", "Code", "Took", "Kernel", "Error"].map((title) => h("th", { scope: "col", class: title === "Took" ? "number" : "" }, title)))), body));
  const state = h("div", {}, loading("Loading executions…"));
  const more = h("button", { class: "button more", type: "button", hidden: true, onclick: () => {
    limit += PAGE * 2;
    refresh();
  } }, "Show more");
  let shownKey = null;

  function apply(event) {
    event?.preventDefault();
    const query = new URLSearchParams(Object.entries({ q: words.value.trim(), status: status.value, kernel: params.get("kernel") ?? "" }).filter(([, value]) => value));
    navigate(`#/executions${query.size ? `?${query}` : ""}`);
  }

  async function refresh(signal) {
    const where = conditionOf({ words: params.get("q") ?? "", status: params.get("status") ?? "", kernel: params.get("kernel") ?? "" });
    try {
      show(await get("/tables/executions", { where, columns: COLUMNS, limit }, signal));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const isNone = error.code === "TABLE_NOT_FOUND";
      table.hidden = true;
      state.replaceChildren(isNone ? emptyState("The pipeline has not run yet.", "It fills this table from the log. 'himalia up' starts it with the server, and it takes half a minute; with 'himalia serve', run: himalia pipeline run --every 5s") : errorState(error, () => refresh()));
    }
  }

  function show({ rows, truncated }) {
    const key = JSON.stringify(rows);
    if (key === shownKey) return;
    shownKey = key;
    state.replaceChildren(...(rows.length ? [] : [emptyState(words.value || status.value ? "No execution matches." : "Nothing was executed yet.")]));
    table.hidden = !rows.length;
    body.replaceChildren(...rows.map(rowOf));
    more.hidden = !truncated;
    more.textContent = `Show more than ${count(rows.length)}`;
  }

  const element = h("section", { class: "view" },
    h("div", { class: "view-head" }, h("h1", {}, "Executions")),
    h("form", { class: "toolbar", onsubmit: apply }, words, status, h("button", { class: "button", type: "submit" }, "Search"),
      params.get("kernel") && h("a", { class: "button quiet", href: "#/executions" }, `Kernel ${shortId(params.get("kernel"))} ✕`)),
    state, table, more);
  return { element, close: poll(refresh, POLL_EVERY_MS), title: "Executions" };
}

function rowOf(row) {
  return h("tr", {},
    h("td", { class: "nowrap" }, moment(row.started ?? row.queued)),
    h("td", {}, badge(row.status, toneOf(row.status))),
    h("td", { class: "code-cell" }, h("a", { class: "row-link mono", href: addressOf(row.kernel_id, row.request_id) }, clipped(row.code ?? "", 120) || "(no code)")),
    h("td", { class: "number nowrap" }, duration(row.run_ms)),
    h("td", {}, h("a", { class: "mono", href: `#/executions?kernel=${encodeURIComponent(row.kernel_id)}` }, shortId(row.kernel_id))),
    h("td", { class: "error-cell" }, row.ename ? [h("strong", {}, row.ename), " ", h("span", { class: "note" }, clipped(row.evalue ?? "", 80))] : ""));
}
