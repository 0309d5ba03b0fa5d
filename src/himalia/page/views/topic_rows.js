// The rows of a topic: records, and notices between them.

import { copyButton } from "../widgets/clipboard.js";
import { h } from "../widgets/elements.js";
import { clipped, clock, count, plural } from "../widgets/format.js";
import { onOneLine, pretty, textAt } from "../live/json_text.js";
import { jsonView } from "../widgets/json_view.js";

const LINE_SHOWN = 400;

/** The fields of an event that a row keeps: its text, and no second copy of the payload. */
export function recordOf({ offset, ts, message: { id, headers }, text }) {
  return { offset, ts, id, headers: headers ?? {}, text };
}

const payloadOf = (record) => textAt(record.text, "message", "payload") ?? "";

export function fillRow(element, row) {
  element.className = `vrow ${row.kind}`;
  if (row.kind === "record") {
    const { offset, ts, headers } = row.record;
    row.line ??= clipped(onOneLine(payloadOf(row.record), LINE_SHOWN), LINE_SHOWN);
    cells(element, [["offset", count(offset)], ["time", clock(ts)], ["who", headers.publisher ?? headers.msg_type ?? ""], ["what", row.line]]);
  } else {
    cells(element, [["notice", textOf(row)]]);
  }
}

function cells(element, wanted) {
  const isSame = element.children.length === wanted.length;
  if (!isSame) element.replaceChildren(...wanted.map(() => h("span")));
  wanted.forEach(([kind, text], index) => {
    const cell = element.children[index];
    cell.className = kind;
    cell.textContent = text;
  });
}

function textOf(row) {
  switch (row.kind) {
    case "dropped":
      return `Skipped: this page reads too slowly for ${plural(row.count, "record")}, offsets ${count(row.first)} to ${count(row.last)}. They are in the log; jump to ${row.first} to read them.`;
    case "gap":
      return `Gap: offset ${count(row.requested)} is not in the log, which continues at ${count(row.first)} and ends at ${count(row.end)}.`;
    case "skipped":
      return `Passed over ${plural(row.count, "record")} from offset ${count(row.first)} on, to show the newest. Jump there to read them.`;
    case "error":
      return `${row.code}: ${row.text}`;
    default:
      return row.text;
  }
}

export function titleOf(row) {
  return row.kind === "record" ? `Offset ${count(row.record.offset)}` : { dropped: "Skipped", gap: "Gap", skipped: "Passed over" }[row.kind] ?? "Notice";
}

/** The text that is copied from a row: the payload as stored. */
export const asText = (row) => (row.kind === "record" ? payloadOf(row.record) : textOf(row));

export function detailsOf(row, topic) {
  if (row.kind !== "record") return [h("p", {}, textOf(row))];
  const { offset, ts, id, headers, text } = row.record;
  const pairs = Object.entries(headers).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
  return [
    h("dl", { class: "pairs" }, h("dt", {}, "time"), h("dd", {}, ts), h("dt", {}, "id"), h("dd", {}, id), ...pairs.flat()),
    ...jsonView(asText(row)),
    h("div", { class: "actions" }, copyButton(() => asText(row), "Copy payload"), copyButton(() => pretty(text), "Copy record"),
      copyButton(() => `${location.origin}/#/topics/${encodeURIComponent(topic)}?from=${offset}`, "Copy link")),
  ];
}
