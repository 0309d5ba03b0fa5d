// One topic: its records as they come, or as they came.

import { get, remove, topicPath } from "../live/api.js";
import { copy } from "../widgets/clipboard.js";
import { carefulButton, h, setText } from "../widgets/elements.js";
import { bytes, count, plural, rate } from "../widgets/format.js";
import { LogSearch } from "../live/log_search.js";
import { rateOf } from "../live/metrics.js";
import { poll } from "../live/polling.js";
import { publishForm } from "./publish_form.js";
import { asText, detailsOf, fillRow, recordOf, titleOf } from "./topic_rows.js";
import { attempt, toast } from "../widgets/toasts.js";
import { VirtualList } from "../widgets/virtual_list.js";

const FIRST_SHOWN = 200;
const CAPACITY = 20_000;
const PAGE = 500; // records read at a time while somebody reads in the past
const BEHIND_MAX = 5000; // what the server may skip beyond, and says so

/**
 * Live, it follows the end. Paused, it holds its place and costs nothing: the log keeps what comes meanwhile, and
 * going on begins exactly there. In the past, it reads a page at a time as somebody scrolls down.
 *
 * With a filter it searches the log: back from the end while live, forward from the place that was asked for in the past.
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
  #end = null; // not known before the first look
  #stopPolling;
  #parts = {};
  #search = null;
  #isToSearchBack = false; // once the server has said where the end is
  #onConnection = () => this.#connectionChanged();
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
    this.#stopPolling = poll((signal) => this.#look(signal), 2000);
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
    this.#subscription = this.#connection.subscribe(this.#topic, wanted, (messages) => this.#take(messages));
  }

  #unsubscribe() {
    this.#subscription?.close();
    this.#subscription = null;
  }

  #newest() {
    this.#list.clear();
    this.#next = null;
    this.#become("live");
    this.#list.showEnd();
    this.#endSearch();
    this.#isToSearchBack = this.#filter !== "";
    this.#subscribe({ last_n: this.#filter ? 0 : FIRST_SHOWN, policy: "drop_oldest", limit: BEHIND_MAX });
  }

  #readPast(place) {
    this.#list.clear();
    this.#next = null;
    this.#credit = PAGE;
    this.#become("past");
    this.#list.showStart();
    this.#endSearch();
    if (this.#filter) this.#searchForward(place);
    else this.#subscribe({ ...place, policy: "lossless" });
  }

  // Searching: what the filter lets pass of the log as it is, beside what comes

  #endSearch() {
    this.#search?.stop();
    this.#search = null;
  }

  #searchBack(from, epoch) {
    this.#isToSearchBack = false;
    const onFound = (records) => this.#list.prepend(records.map(rowOf));
    this.#search = new LogSearch(this.#topic, this.#filter, { onFound, onChange: () => this.#showPlace() });
    this.#search.back(from, epoch);
  }

  #searchForward(place) {
    const onFound = (records, answer) => {
      this.#epoch = answer.epoch;
      this.#tellGap(place.from, answer);
      this.#list.append(records.map(rowOf));
      this.#credit -= records.length;
      this.#next = answer.next;
    };
    this.#search = new LogSearch(this.#topic, this.#filter, { onFound, onChange: () => this.#searchedForward() });
    this.#search.forward(place);
  }

  /** What is asked for first may be gone; it is said once. */
  #tellGap(requested, { first, end }) {
    if (this.#next === null && requested < first) this.#list.append([{ kind: "gap", requested, first, end }]);
  }

  /** At the end of the log, what comes is shown too. */
  #searchedForward() {
    if (this.#search.state === "done" && !this.#subscription && this.#credit > 0) {
      this.#subscribe({ from: this.#next, epoch: this.#epoch ?? undefined, policy: "lossless" });
    }
    if (this.#search.state === "failed") this.#complain(this.#search.error.message);
    this.#showPlace();
  }

  #searchOn() {
    if (this.#search.state === "running") return this.#search.stop();
    if (this.#mode !== "past" && this.#list.length > CAPACITY) {
      return toast(`This page keeps ${count(CAPACITY)} rows: narrow the filter, or jump to an earlier offset`, "bad");
    }
    if (this.#mode === "past") this.#credit = PAGE;
    this.#search.resume();
  }

  /** Whoever pauses before the server has said where we are still learns it: there is a place to hold only then. */
  #pause() {
    if (this.#next === null) this.#credit = 0;
    else this.#unsubscribe();
    this.#list.following = false;
    this.#become("paused");
  }

  /** Go on where we stopped, unless so much came meanwhile that it would only rush by. */
  #goLive() {
    const missed = this.#end - (this.#next ?? this.#end);
    if (this.#waitsAhead()) return this.#newest();
    if (this.#next === null || missed > CAPACITY / 2) {
      const skipped = this.#next;
      this.#newest();
      if (skipped !== null) this.#append([{ kind: "skipped", first: skipped, count: missed }]);
      return;
    }
    if (this.#mode === "past") this.#endSearch();
    this.#become("live");
    this.#list.showEnd();
    const place = { from: this.#next, epoch: this.#epoch ?? undefined };
    this.#subscribe({ ...place, policy: "drop_oldest", limit: BEHIND_MAX });
  }

  /** Whether somebody jumped beyond the end: nothing is shown until the log reaches that offset. */
  #waitsAhead() {
    return this.#mode === "past" && this.#end !== null && this.#next > this.#end && !this.#list.length;
  }

  /** While nobody looked much may have come: then what is new is worth more than all of it. */
  async #connectionChanged() {
    if (this.#mode !== "live") return;
    if (this.#connection.state === "asleep") {
      this.#unsubscribe();
      this.#wasAsleep = true;
    } else if (this.#connection.state === "open" && this.#wasAsleep) {
      this.#wasAsleep = false;
      await this.#look();
      if (this.#mode === "live" && !this.#subscription) this.#goLive();
    }
  }

  #take(messages) {
    const rows = [];
    for (const message of messages) {
      const isAnswer = message.type === "ack" || message.type === "error";
      if (this.#credit <= 0 && !isAnswer) break; // not ours to show yet: it is read again from #next
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
    this.#showPlace();
  }

  #rowFor(message) {
    if (message.type === "event") return rowOf(message);
    if (message.type === "ack") return this.#placed(message);
    if (message.type === "error") {
      if (message.request_id) this.#complain(message.error.message);
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

  #placed({ epoch, offset }) {
    this.#epoch = epoch ?? null;
    if (this.#next === null) this.#next = offset ?? null;
    this.#complain("");
    if (this.#isToSearchBack) this.#searchBack(offset, epoch);
    return null;
  }

  #append(rows) {
    if (!rows.length) return;
    this.#list.append(rows);
    this.#showPlace();
  }

  #onScroll({ atEnd }) {
    if (this.#mode === "live" && !atEnd) this.#pause();
    else if (this.#mode === "past" && atEnd && this.#credit <= 0 && this.#next !== null) {
      if (this.#search?.state === "paused") return this.#searchOn();
      if (this.#search && this.#search.state !== "done") return;
      this.#credit = PAGE;
      this.#subscribe({ from: this.#next, epoch: this.#epoch ?? undefined, policy: "lossless" });
    }
  }

  // What stands around the list

  #become(mode) {
    this.#mode = mode;
    this.#credit = mode === "live" ? Infinity : this.#credit;
    const button = this.#parts.pause;
    button.textContent = mode === "live" ? "Pause" : "Go live";
    button.setAttribute("aria-pressed", mode !== "live");
    button.classList.toggle("primary", mode !== "live");
    this.#parts.mode.textContent = { live: "Live", paused: "Paused", past: "In the past" }[mode];
    this.#parts.mode.className = `badge ${mode === "live" ? "ok pulse" : "warn"}`;
    this.#showPlace();
  }

  #showPlace() {
    const newest = this.#list.rows.findLast((row) => row.kind === "record");
    const parts = [];
    if (newest) parts.push(`${plural(this.#list.length, "row")} here, to offset ${count(newest.record.offset)}`);
    const waiting = this.#end - (this.#next ?? this.#end);
    if (this.#mode !== "live" && waiting > 0) parts.push(`${count(waiting)} more in the log`);
    if (this.#waitsAhead()) parts.push(`Waiting for offset ${count(this.#next)}; the topic ends at ${count(this.#end)}`);
    else if (!newest && !this.#filter) parts.push("Nothing here yet");
    const state = this.#search?.state ?? "done";
    if (!newest && this.#search && state === "done") parts.push("Nothing matches");
    if (this.#search) parts.push(this.#search.sentence);
    setText(this.#parts.place, parts.join(" · "));
    this.#parts.search.hidden = state === "done";
    setText(this.#parts.search, { running: "Stop", failed: "Try again" }[state] ?? "Search on");
  }

  async #look(signal) {
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
    if (this.#mode !== "live") this.#showPlace();
  }

  #complain(text) {
    this.#parts.complaint.textContent = text;
    this.#parts.complaint.hidden = !text;
  }

  #go(params) {
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
    parts.details = h("aside", { class: "details", "aria-label": "The chosen record", hidden: true });
    parts.search = h("button", { class: "button tiny", type: "button", hidden: true, onclick: () => this.#searchOn() });
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
          h("button", { class: "button", type: "button", onclick: () => this.#go({ filter: this.#filter }) }, "Newest"),
          h("button", { class: "button", type: "button", onclick: togglePublish }, "Publish…"),
          carefulButton("Delete", "Delete all of it?", () => this.#delete(), "danger"))),
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
      this.#go({ filter: input.value.trim(), from: this.#params.get("from"), since: this.#params.get("since") });
    };
    const clear = this.#filter && h("button", { class: "button quiet", type: "button", onclick: () => this.#go({}) }, "Clear");
    return h("form", { class: "inline-form grow", onsubmit: apply }, input, h("button", { class: "button", type: "submit" }, "Filter"), clear);
  }

  #jumpForm() {
    const input = h("input", {
      class: "input", size: "20", placeholder: "Offset, or 14:30, or a date", "aria-label": "Jump to an offset or a time",
      value: this.#params.get("from") ?? this.#params.get("since") ?? "",
    });
    const jump = (event) => {
      event.preventDefault();
      const place = placeOf(input.value.trim());
      if (!place) return toast("Say an offset (1200), a time of today (14:30), or a date and time (2026-11-16 14:30)", "bad");
      this.#go({ ...place, filter: this.#filter });
    };
    return h("form", { class: "inline-form", onsubmit: jump }, input, h("button", { class: "button", type: "submit" }, "Jump"));
  }

  async #delete() {
    if (await attempt(() => remove(topicPath(this.#topic)))) this.#navigate("#/topics");
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

/** From what somebody typed to a place in the log; null if it says none. */
export function placeOf(text) {
  if (/^\d+$/.test(text)) return { from: text };
  const today = text.match(/^(\d{1,2}):(\d{2})(?::(\d{2}))?$/);
  const at = today ? new Date() : new Date(/^\d{4}-\d{2}-\d{2}$/.test(text) ? `${text}T00:00` : text);
  if (today) at.setHours(Number(today[1]), Number(today[2]), Number(today[3] ?? 0), 0);
  return text && !Number.isNaN(at.getTime()) ? { since: at.toISOString() } : null;
}
