// One topic: its records, live or from the past.

import { get, remove, topicPath } from "../live/api.js";
import { copy } from "../widgets/clipboard.js";
import { confirmButton, h, setText } from "../widgets/elements.js";
import { bytes, count, plural, rate } from "../widgets/format.js";
import { LogSearch } from "../live/log_search.js";
import { rateOf } from "../live/metrics.js";
import { poll } from "../live/polling.js";
import { publishForm } from "./publish_form.js";
import { asText, detailsOf, fillRow, recordOf, titleOf } from "./topic_rows.js";
import { withErrorToast, toast } from "../widgets/toasts.js";
import { VirtualList } from "../widgets/virtual_list.js";

const FIRST_SHOWN = 200;
const CAPACITY = 20_000;
const PAGE = 500; // records read at a time in the past
const BEHIND_MAX = 5000; // the lag beyond which the server skips records, and reports it

/**
 * Live, it follows the end. Paused, it has no subscription: the log keeps new records, and reading resumes exactly
 * where it paused. In the past, it reads a page at a time while the user scrolls down.
 *
 * With a filter it searches the log: back from the end while live, forward from the requested position in the past.
 */
export function topicView({ connection, navigate, route }) {
  const topic = route.parts[1];
  const view = new TopicView(connection, navigate, topic, route.params);
  return { element: view.element, close: () => view.close(), title: topic, onKey: (key) => view.onKey(key) };
}

class TopicView {
  #connection;
  #topic;
  #params;
  #navigate;
  #list;
  #subscription = null;
  #mode = "live"; // "live", "paused" or "past"
  #credit = Infinity;
  #next = null;
  #epoch = null;
  #end = null; // not known before the first request
  #stopPolling;
  #parts = {};
  #search = null;
  #isToSearchBack = false; // as soon as the server has reported the end
  #onConnection = () => this.#onConnectionChange();
  #wasAsleep = false;

  constructor(connection, navigate, topic, params) {
    this.#connection = connection;
    this.#navigate = navigate;
    this.#topic = topic;
    this.#params = params;
    this.#list = new VirtualList({
      fill: fillRow, capacity: CAPACITY, rowHeight: 30, label: `Records of ${topic}`,
      onSelect: (row) => this.#showDetails(row), onScroll: (place) => this.#onScroll(place),
    });
    this.element = this.#layout();
    this.#stopPolling = poll((signal) => this.#refresh(signal), 2000);
    connection.addEventListener("change", this.#onConnection);
    this.#begin();
  }

  close() {
    this.#connection.removeEventListener("change", this.#onConnection);
    this.#search?.stop();
    this.#unsubscribe();
    this.#stopPolling();
    this.#list.close();
  }

  onKey(key) {
    if (key === " ") this.#mode === "live" ? this.#pause() : this.#goLive();
    else if (key === "n") this.#newest();
    else if (key === "c" && this.#parts.selected) copy(asText(this.#parts.selected));
    else if (key === "Escape") this.#showDetails(null);
    else return false;
    return true;
  }

  // Reading

  get #filter() {
    return this.#params.get("filter") ?? "";
  }

  #begin() {
    const from = this.#params.get("from");
    const since = this.#params.get("since");
    if (from !== null || since !== null) this.#readPast(from !== null ? { from: Number(from) } : { since });
    else this.#newest();
  }

  #subscribe(place) {
    this.#subscription?.close();
    const wanted = { ...place, ...(this.#filter && { filter: this.#filter }) };
    this.#subscription = this.#connection.subscribe(this.#topic, wanted, (messages) => this.#onMessages(messages));
  }

  #unsubscribe() {
    this.#subscription?.close();
    this.#subscription = null;
  }

  #newest() {
    this.#list.clear();
    this.#next = null;
    this.#setMode("live");
    this.#list.showEnd();
    this.#endSearch();
    this.#isToSearchBack = this.#filter !== "";
    this.#subscribe({ last_n: this.#filter ? 0 : FIRST_SHOWN, policy: "drop_oldest", limit: BEHIND_MAX });
  }

  #readPast(place) {
    this.#list.clear();
    this.#next = null;
    this.#credit = PAGE;
    this.#setMode("past");
    this.#list.showStart();
    this.#endSearch();
    if (this.#filter) this.#searchForward(place);
    else this.#subscribe({ ...place, policy: "lossless" });
  }

  // Searching: the records in the log that match the filter, in addition to new ones

  #endSearch() {
    this.#search?.stop();
    this.#search = null;
  }

  #searchBack(from, epoch) {
    this.#isToSearchBack = false;
    const onFound = (records) => this.#list.prepend(records.map(rowOf));
    this.#search = new LogSearch(this.#topic, this.#filter, { onFound, onChange: () => this.#showStatus() });
    this.#search.back(from, epoch);
  }

  #searchForward(place) {
    const onFound = (records, answer) => {
      this.#epoch = answer.epoch;
      this.#showGap(place.from, answer);
      this.#list.append(records.map(rowOf));
      this.#credit -= records.length;
      this.#next = answer.next;
    };
    this.#search = new LogSearch(this.#topic, this.#filter, { onFound, onChange: () => this.#onSearchForward() });
    this.#search.forward(place);
  }

  /** Show once that the first requested record is no longer in the log. */
  #showGap(requested, { first, end }) {
    if (this.#next === null && requested < first) this.#list.append([{ kind: "gap", requested, first, end }]);
  }

  /** At the end of the log, subscribe to new records. */
  #onSearchForward() {
    if (this.#search.state === "done" && !this.#subscription && this.#credit > 0) {
      this.#subscribe({ from: this.#next, epoch: this.#epoch ?? undefined, policy: "lossless" });
    }
    if (this.#search.state === "failed") this.#showComplaint(this.#search.error.message);
    this.#showStatus();
  }

  #continueSearch() {
    if (this.#search.state === "running") return this.#search.stop();
    if (this.#mode !== "past" && this.#list.length > CAPACITY) {
      return toast(`This page keeps ${count(CAPACITY)} rows: narrow the filter, or jump to an earlier offset`, "bad");
    }
    if (this.#mode === "past") this.#credit = PAGE;
    this.#search.resume();
  }

  /** Before the ack there is no position to hold: then keep the subscription until it arrives, and show nothing. */
  #pause() {
    if (this.#next === null) this.#credit = 0;
    else this.#unsubscribe();
    this.#list.following = false;
    this.#setMode("paused");
  }

  /** Resume where we paused, or at the end if too many records were appended meanwhile. */
  #goLive() {
    const missed = this.#end - (this.#next ?? this.#end);
    if (this.#isBeyondEnd()) return this.#newest();
    if (this.#next === null || missed > CAPACITY / 2) {
      const skipped = this.#next;
      this.#newest();
      if (skipped !== null) this.#append([{ kind: "skipped", first: skipped, count: missed }]);
      return;
    }
    if (this.#mode === "past") this.#endSearch();
    this.#setMode("live");
    this.#list.showEnd();
    const place = { from: this.#next, epoch: this.#epoch ?? undefined };
    this.#subscribe({ ...place, policy: "drop_oldest", limit: BEHIND_MAX });
  }

  /** Whether the requested offset is beyond the end: nothing is shown until the log reaches it. */
  #isBeyondEnd() {
    return this.#mode === "past" && this.#end !== null && this.#next > this.#end && !this.#list.length;
  }

  /** Give up the position while the page is hidden, and resume when it is shown: many records may have been appended. */
  async #onConnectionChange() {
    if (this.#mode !== "live") return;
    if (this.#connection.state === "asleep") {
      this.#unsubscribe();
      this.#wasAsleep = true;
    } else if (this.#connection.state === "open" && this.#wasAsleep) {
      this.#wasAsleep = false;
      await this.#refresh();
      if (this.#mode === "live" && !this.#subscription) this.#goLive();
    }
  }

  #onMessages(messages) {
    const rows = [];
    for (const message of messages) {
      const isAnswer = message.type === "ack" || message.type === "error";
      if (this.#credit <= 0 && !isAnswer) break; // not to be shown yet: it is read again from #next
      const row = this.#rowFor(message);
      if (row) rows.push(row);
      if (message.type === "event") {
        this.#next = message.offset + 1;
        this.#credit -= 1;
      }
    }
    this.#append(rows);
    if (this.#credit > 0) return;
    this.#unsubscribe();
    this.#showStatus();
  }

  #rowFor(message) {
    if (message.type === "event") return rowOf(message);
    if (message.type === "ack") return this.#onAck(message);
    if (message.type === "error") {
      if (message.request_id) this.#showComplaint(message.error.message);
      return { kind: "error", code: message.error.code, text: message.error.message };
    }
    if (message.msg === "gap") {
      if (message.first < (this.#next ?? 0)) this.#next = message.first;
      return { kind: "gap", ...message };
    }
    if (message.msg === "dropped") return { kind: "dropped", ...message };
    if (message.msg === "topic_deleted") return { kind: "info", text: "The topic was deleted." };
    return null;
  }

  #onAck({ epoch, offset }) {
    this.#epoch = epoch ?? null;
    if (this.#next === null) this.#next = offset ?? null;
    this.#showComplaint("");
    if (this.#isToSearchBack) this.#searchBack(offset, epoch);
    return null;
  }

  #append(rows) {
    if (!rows.length) return;
    this.#list.append(rows);
    this.#showStatus();
  }

  #onScroll({ atEnd }) {
    if (this.#mode === "live" && !atEnd) this.#pause();
    else if (this.#mode === "past" && atEnd && this.#credit <= 0 && this.#next !== null) {
      if (this.#search?.state === "paused") return this.#continueSearch();
      if (this.#search && this.#search.state !== "done") return;
      this.#credit = PAGE;
      this.#subscribe({ from: this.#next, epoch: this.#epoch ?? undefined, policy: "lossless" });
    }
  }

  // Around the list

  #setMode(mode) {
    this.#mode = mode;
    this.#credit = mode === "live" ? Infinity : this.#credit;
    const button = this.#parts.pause;
    button.textContent = mode === "live" ? "Pause" : "Go live";
    button.setAttribute("aria-pressed", mode !== "live");
    button.classList.toggle("primary", mode !== "live");
    this.#parts.mode.textContent = { live: "Live", paused: "Paused", past: "In the past" }[mode];
    this.#parts.mode.className = `badge ${mode === "live" ? "ok pulse" : "warn"}`;
    this.#showStatus();
  }

  #showStatus() {
    const newest = this.#list.rows.findLast((row) => row.kind === "record");
    const parts = [];
    if (newest) parts.push(`${plural(this.#list.length, "row")} shown, to offset ${count(newest.record.offset)}`);
    const waiting = this.#end - (this.#next ?? this.#end);
    if (this.#mode !== "live" && waiting > 0) parts.push(`${count(waiting)} more in the log`);
    if (this.#isBeyondEnd()) parts.push(`Waiting for offset ${count(this.#next)}; the topic ends at ${count(this.#end)}`);
    else if (!newest && !this.#filter) parts.push("No records yet");
    const state = this.#search?.state ?? "done";
    if (!newest && this.#search && state === "done") parts.push("No record matches");
    if (this.#search) parts.push(this.#search.summary);
    setText(this.#parts.place, parts.join(" · "));
    this.#parts.search.hidden = state === "done";
    setText(this.#parts.search, { running: "Stop", failed: "Try again" }[state] ?? "Continue search");
  }

  async #refresh(signal) {
    const stats = await get("/stats", {}, signal).catch((error) => {
      if (error.name === "AbortError") throw error;
      return null;
    });
    const topic = stats?.topics[this.#topic];
    if (!topic) return;
    this.#end = topic.end;
    const facts = [
      rate(rateOf(topic)), plural(topic.messages, "message"), `${bytes(topic.bytes)} kept`,
      topic.first > 0 && `from offset ${count(topic.first)}`, plural(topic.subscribers, "subscriber"),
      topic.lag > 0 && `lag ${count(topic.lag)}`,
    ];
    setText(this.#parts.facts, facts.filter(Boolean).join(" · "));
    if (this.#mode !== "live") this.#showStatus();
  }

  #showComplaint(text) {
    this.#parts.complaint.textContent = text;
    this.#parts.complaint.hidden = !text;
  }

  #navigateTo(params) {
    const query = new URLSearchParams([...Object.entries(params)].filter(([, value]) => value !== "" && value != null));
    const address = `#/topics/${encodeURIComponent(this.#topic)}${query.size ? `?${query}` : ""}`;
    if (address === location.hash) this.#newest();
    else this.#navigate(address);
  }

  #layout() {
    const parts = this.#parts;
    parts.mode = h("span", { class: "badge" });
    parts.facts = h("p", { class: "facts" });
    parts.place = h("span", { class: "note" });
    parts.complaint = h("p", { class: "complaint", role: "alert", hidden: true });
    parts.pause = h("button", { class: "button", type: "button", onclick: () => this.onKey(" ") }, "Pause");
    parts.details = h("aside", { class: "details", "aria-label": "Selected record", hidden: true });
    parts.search = h("button", { class: "button tiny", type: "button", hidden: true, onclick: () => this.#continueSearch() });
    parts.publish = publishForm(this.#topic);
    const togglePublish = () => {
      parts.publish.hidden = !parts.publish.hidden;
      if (!parts.publish.hidden) parts.publish.querySelector("textarea").focus();
    };
    return h("section", { class: "view fill" },
      h("div", { class: "view-head" },
        h("div", {}, h("a", { class: "crumb", href: "#/topics" }, "Topics"), h("h1", { class: "mono-title" }, this.#topic, " ", parts.mode), parts.facts),
        h("div", { class: "actions" },
          parts.pause,
          h("button", { class: "button", type: "button", onclick: () => this.#navigateTo({ filter: this.#filter }) }, "Newest"),
          h("button", { class: "button", type: "button", onclick: togglePublish }, "Publish…"),
          confirmButton("Delete", "Delete all records?", () => this.#delete(), "danger"))),
      h("div", { class: "toolbar" }, this.#filterForm(), this.#jumpForm()),
      parts.complaint, parts.publish,
      h("div", { class: "split" }, h("div", { class: "card flush list-card" }, this.#list.element), parts.details),
      h("p", { class: "status-line" }, parts.place, " ", parts.search));
  }

  #filterForm() {
    const input = h("input", {
      class: "input mono grow", value: this.#filter, spellcheck: "false", "data-find": "",
      placeholder: "Filter in CEL: message.payload.total > 100", "aria-label": "Filter, an expression in CEL",
    });
    const apply = (event) => {
      event.preventDefault();
      this.#navigateTo({ filter: input.value.trim(), from: this.#params.get("from"), since: this.#params.get("since") });
    };
    const clear = this.#filter && h("button", { class: "button quiet", type: "button", onclick: () => this.#navigateTo({}) }, "Clear");
    return h("form", { class: "inline-form grow", onsubmit: apply }, input, h("button", { class: "button", type: "submit" }, "Filter"), clear);
  }

  #jumpForm() {
    const input = h("input", {
      class: "input", size: "20", placeholder: "Offset, or 14:30, or a date", "aria-label": "Jump to an offset or a time",
      value: this.#params.get("from") ?? this.#params.get("since") ?? "",
    });
    const jump = (event) => {
      event.preventDefault();
      const place = parsePosition(input.value.trim());
      if (!place) return toast("Enter an offset (1200), a time of today (14:30), or a date and time (2026-11-16 14:30)", "bad");
      this.#navigateTo({ ...place, filter: this.#filter });
    };
    return h("form", { class: "inline-form", onsubmit: jump }, input, h("button", { class: "button", type: "submit" }, "Jump"));
  }

  async #delete() {
    if (await withErrorToast(() => remove(topicPath(this.#topic)))) this.#navigate("#/topics");
  }

  #showDetails(row) {
    this.#parts.selected = row;
    const place = this.#parts.details;
    place.hidden = row === null;
    if (row === null) return;
    const close = h("button", { class: "button quiet", type: "button", "aria-label": "Close", onclick: () => this.#showDetails(null) }, "✕");
    place.replaceChildren(h("div", { class: "details-head" }, h("h2", {}, titleOf(row)), close), ...detailsOf(row, this.#topic).filter(Boolean));
  }
}

const rowOf = (record) => ({ kind: "record", record: recordOf(record) });

/** Parse an offset or a time that the user typed; null if it is neither. */
export function parsePosition(text) {
  if (/^\d+$/.test(text)) return { from: text };
  const today = text.match(/^(\d{1,2}):(\d{2})(?::(\d{2}))?$/);
  const at = today ? new Date() : new Date(/^\d{4}-\d{2}-\d{2}$/.test(text) ? `${text}T00:00` : text);
  if (today) at.setHours(Number(today[1]), Number(today[2]), Number(today[3] ?? 0), 0);
  return text && !Number.isNaN(at.getTime()) ? { since: at.toISOString() } : null;
}
