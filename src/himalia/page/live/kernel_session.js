// A kernel's topic, folded into what a person sees: requests with their outputs, and what happened to the kernel.
// Without elements: it depends only on the records and their order, so two browsers show the same.

import { textAt } from "./json_text.js";
import { Terminal } from "../widgets/terminal.js";
import { Widgets } from "./comm_state.js";

const KEPT_CHARS_MAX = 64_000_000;
const OUTPUTS_MAX = 2000;
const DATE_TOLERANCE_MS = 1000;
const SHOWS = new Set(["stream", "display_data", "execute_result", "error", "clear_output", "update_display_data"]);
const COMMS = new Set(["comm_open", "comm_msg", "comm_close"]);
export const WIDGET = "application/vnd.jupyter.widget-view+json";
export const ENDED = new Set(["ok", "error", "aborted", "died", "timeout", "cancelled", "stale"]);

/** One request: its code, where it stands, what it showed. */
export class Cell {
  kind = "cell";
  count = null;
  code = null;
  status = "queued";
  reason = "";
  queuedAt = null;
  startedAt = null;
  finishedAt = null;
  busyDate = NaN; // the kernel's own clock, in ms
  idleDate = NaN;
  outputs = [];
  prompt = null; // what the code asks on stdin
  clearFirst = false;
  isForeign = false;
  isLoose = false; // an output whose request we know nothing of: the log has lost it, or it was not to run code
  isReleased = false; // its outputs are no longer kept here, only in the log
  omitted = 0;
  chars = 0;
  version = 0;

  constructor(requestId, offset) {
    this.requestId = requestId;
    this.offset = offset;
  }

  get hasEnded() {
    return ENDED.has(this.status);
  }

  /** How long it ran, in ms, by the rule of jupyter/duration.py; null if that is not known. */
  get ranMs() {
    if (!this.startedAt || !this.finishedAt) return null;
    const [started, closed] = [msOf(this.startedAt), msOf(this.finishedAt)];
    const earliest = this.queuedAt ? msOf(this.queuedAt) : started;
    const isPlausible = earliest - DATE_TOLERANCE_MS <= this.busyDate && this.busyDate <= this.idleDate && this.idleDate <= closed + DATE_TOLERANCE_MS;
    const ran = isPlausible ? this.idleDate - this.busyDate : Math.max(closed - started, 0);
    return Math.round(ran * 1000) / 1000;
  }
}

/** `entries` are cells and notes in the order they began; `changed` collects those that changed. */
export class Session {
  #cells = new Map();
  #displays = new Map();
  #widgets = new Widgets();
  #widgetDisplays = new Map(); // by the id of the model that they show
  #chars = 0;
  #oldestKept = 0;
  #busy = null; // the last busy of a request that is not known yet
  entries = [];
  changed = new Set();
  state = null; // what the kernel last said of itself: "busy", "idle", …

  cell(requestId) {
    return this.#cells.get(requestId);
  }

  /** The code of all requests, oldest first: the history of the input line. */
  codes() {
    return this.entries.filter((entry) => entry.code).map((entry) => entry.code);
  }

  /** Take the next record. Never throws on what a kernel says. */
  take(record) {
    const headers = record.message.headers ?? {};
    const payload = record.message.payload;
    const content = isObject(payload) && isObject(payload.content) ? payload.content : {};
    const date = isObject(payload) && isObject(payload.header) ? msOf(payload.header.date) : NaN;
    const told = { record, content, date, type: String(headers.msg_type ?? ""), parent: String(headers.parent_id ?? "") };
    if (told.type === "kernel_event") this.#event(told);
    else if (told.type === "status") this.#status(told);
    else if (told.type === "execute_input") this.#input(told);
    else if (told.type === "execute_request") this.#sent(told);
    else if (told.type === "input_request") this.#asks(told);
    else if (told.type === "input_reply") this.#answered(told);
    else if (COMMS.has(told.type)) this.#comm(told);
    else if (SHOWS.has(told.type)) this.#output(told);
  }

  /** Something to tell beside the records, such as a gap. */
  note(text, kind = "", ts = null) {
    const note = { kind: "note", text, tone: kind, ts, version: 0 };
    this.entries.push(note);
    this.changed.add(note);
  }

  #cellOf(requestId, record) {
    let cell = this.#cells.get(requestId);
    if (!cell) {
      cell = new Cell(requestId, record.offset);
      this.#cells.set(requestId, cell);
      this.entries.push(cell);
    }
    this.#touch(cell);
    return cell;
  }

  #touch(cell) {
    cell.version += 1;
    this.changed.add(cell);
  }

  // Requests

  #event({ record, content, parent }) {
    const event = content.event;
    if (event === "request_queued") {
      const cell = this.#cellOf(parent, record);
      cell.code = textOf(content.code);
      cell.queuedAt = record.ts;
      cell.isLoose = false;
    } else if (event === "request_closed") {
      const cell = this.#cellOf(parent, record);
      cell.status = String(content.status ?? "ok");
      cell.reason = textOf(content.reason);
      cell.finishedAt = record.ts;
      cell.prompt = null;
      if (Number.isInteger(content.execution_count)) cell.count = content.execution_count;
    } else {
      this.#kernelEvent(event, content, record.ts);
    }
  }

  #kernelEvent(event, content, ts) {
    const reason = content.reason ? `: ${textOf(content.reason)}` : "";
    const told = {
      started: ["Kernel started", "good"], attached: ["Attached to the kernel", "good"],
      reattached: ["The server is back; what was said meanwhile follows", "good"],
      interrupted: ["Interrupted", "warn"], restarting: [`Restarting${reason}`, "warn"],
      restarted: ["Kernel restarted", "good"], moved: [`Kernel started on other ports${reason}`, "good"],
      died: [`The kernel died${reason}`, "bad"],
      stopped: [`Kernel stopped${reason === ": asked to" ? "" : reason}`, "warn"],
      gap: [`${content.count ? `${content.count} messages are missing` : "Messages are missing here"}${reason}`, "bad"],
      message_too_large: [`A ${textOf(content.msg_type)} message of ${content.size_bytes} bytes was too large to keep`, "bad"],
    }[event] ?? [`${textOf(event)}${reason}`, ""];
    if (["died", "stopped"].includes(event)) this.state = "dead";
    this.note(told[0], told[1], ts);
  }

  #status({ record, content, parent, date }) {
    this.state = String(content.execution_state ?? this.state);
    const cell = this.#cells.get(parent);
    if (!cell && content.execution_state === "busy") this.#busy = { parent, date, ts: record.ts };
    if (!cell || cell.hasEnded) return;
    if (content.execution_state === "idle") cell.idleDate = earlier(cell.idleDate, date);
    if (content.execution_state === "busy") {
      cell.status = "running";
      cell.startedAt ??= record.ts;
      cell.busyDate = earlier(cell.busyDate, date);
      this.#touch(cell);
    } else if (content.execution_state === "idle" && cell.isForeign) {
      // Another client's request: nobody closes it for us.
      cell.status = cell.outputs.some((output) => output.kind === "error") ? "error" : "ok";
      cell.finishedAt = record.ts;
      this.#touch(cell);
    }
  }

  #sent({ record, content }) {
    const cell = this.#cells.get(record.message.id);
    if (!cell || cell.code !== null) return;
    cell.code = textOf(content.code);
    this.#touch(cell);
  }

  #input({ record, content, parent }) {
    const isNew = !this.#cells.has(parent);
    const cell = this.#cellOf(parent, record);
    // Code in the kernel can say this of any request, so it changes neither code that is known nor a cell that has ended.
    cell.code ??= textOf(content.code);
    cell.isLoose = false;
    if (!cell.hasEnded && Number.isInteger(content.execution_count)) cell.count = content.execution_count;
    if (!isNew) return;
    cell.isForeign = true;
    cell.status = "running";
    const busy = this.#busy?.parent === parent ? this.#busy : null;
    cell.startedAt = busy?.ts ?? record.ts;
    cell.busyDate = busy?.date ?? NaN;
  }

  #asks({ record, content, parent }) {
    const cell = this.#cellOf(parent, record);
    cell.prompt = { text: textOf(content.prompt), isPassword: content.password === true };
  }

  #answered({ content, parent }) {
    const cell = this.#cells.get(parent) ?? [...this.#cells.values()].find((one) => one.prompt);
    if (!cell?.prompt) return;
    const { text, isPassword } = cell.prompt;
    cell.prompt = null;
    this.#stream(cell, "stdout", `${text}${isPassword ? "········" : textOf(content.value)}\n`);
    this.#touch(cell);
  }

  // Outputs

  #output({ record, content, type, parent }) {
    if (type === "update_display_data") return this.#update(content, record);
    // What nobody asked for stands where it came, not with what nobody asked for an hour ago.
    if (parent === "" && this.#cells.get(parent) !== this.entries.at(-1)) this.#cells.delete(parent);
    const isNew = !this.#cells.has(parent);
    const cell = this.#cellOf(parent, record);
    if (isNew) cell.isLoose = true;
    if (cell.isReleased) return;
    if (type === "clear_output") {
      if (content.wait === true) cell.clearFirst = true;
      else this.#clear(cell);
      return;
    }
    if (cell.clearFirst) this.#clear(cell);
    if (type === "stream") return this.#stream(cell, content.name === "stderr" ? "stderr" : "stdout", textOf(content.text));
    const output = type === "error" ? errorOf(content) : this.#display(cell, content, type, record);
    this.#add(cell, output, sizeOf(content) + sizeOf(output.json ?? ""));
  }

  #stream(cell, name, text) {
    let last = cell.outputs.at(-1);
    if (last?.kind !== "stream" || last.name !== name) {
      last = { kind: "stream", name, terminal: new Terminal() };
      if (!this.#add(cell, last, 0)) return;
    }
    last.terminal.write(text);
    this.#count(cell, text.length);
  }

  #display(cell, content, type, record) {
    const display = { kind: "display", ...formsOf(content, record), count: null, version: 0, cell };
    if (type === "execute_result" && Number.isInteger(content.execution_count)) display.count = content.execution_count;
    const id = content.transient?.display_id;
    if (id !== undefined && id !== null) addTo(this.#displays, id, display);
    const model = display.data[WIDGET]?.model_id;
    if (typeof model === "string") {
      display.widgets = this.#widgets;
      addTo(this.#widgetDisplays, model, display);
    }
    return display;
  }

  #comm({ type, content }) {
    const changed = this.#widgets.take(type, content);
    if (changed === null) return;
    for (const model of this.#widgets.around(changed)) {
      for (const display of this.#widgetDisplays.get(model) ?? []) {
        display.version += 1;
        this.#touch(display.cell);
      }
    }
  }

  #update(content, record) {
    for (const display of this.#displays.get(content.transient?.display_id) ?? []) {
      Object.assign(display, formsOf(content, record));
      display.version += 1;
      this.#touch(display.cell);
    }
  }

  #add(cell, output, size) {
    if (cell.outputs.length >= OUTPUTS_MAX) {
      cell.omitted += 1;
      return false;
    }
    cell.outputs.push(output);
    this.#count(cell, size);
    return true;
  }

  #clear(cell) {
    this.#chars -= cell.chars;
    cell.chars = 0;
    cell.outputs = [];
    cell.omitted = 0;
    cell.clearFirst = false;
  }

  /** When too much is kept, the oldest outputs go: the log has them, and each request has its own address. */
  #count(cell, chars) {
    cell.chars += chars;
    this.#chars += chars;
    while (this.#chars > KEPT_CHARS_MAX && this.#oldestKept < this.entries.length - 1) {
      const oldest = this.entries[this.#oldestKept];
      this.#oldestKept += 1;
      if (oldest.kind !== "cell" || oldest === cell) continue;
      this.#clear(oldest);
      oldest.isReleased = true;
      this.#touch(oldest);
    }
  }
}

function addTo(lists, key, value) {
  if (!lists.has(key)) lists.set(key, []);
  lists.get(key).push(value);
}

/** What is displayed, by media type: `data` as it was parsed, and `json`, as it was written, of what is not text. */
function formsOf(content, record) {
  const data = isObject(content.data) ? content.data : {};
  const forms = Object.keys(data).filter((form) => form.endsWith("json") || !isText(data[form]));
  return { data, json: Object.fromEntries(forms.map((form) => [form, writtenAs(record, form)])) };
}

const writtenAs = (record, form) => textAt(record.text, "message", "payload", "content", "data", form) ?? "";

function errorOf(content) {
  const traceback = Array.isArray(content.traceback) ? content.traceback.map(textOf) : [];
  return { kind: "error", ename: textOf(content.ename), evalue: textOf(content.evalue), traceback };
}

/** A time in ms since 1970, to the microsecond: `Date.parse` cuts what is below a millisecond. NaN for what is none. */
function msOf(text) {
  const below = /\.\d{3}(\d{1,3})/.exec(text);
  return Date.parse(text) + (below ? Number(below[1].padEnd(3, "0")) / 1000 : 0);
}

/** The earlier of two times in ms; NaN is none. */
const earlier = (one, other) => (other < one || Number.isNaN(one) ? other : one);

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Text as Jupyter has it: a string, or lines of strings. */
const isText = (value) => typeof value === "string" || (Array.isArray(value) && value.every((line) => typeof line === "string"));

/** Such a text; of what should be one and is not, its JSON. */
export function textOf(value) {
  if (value === null || value === undefined) return "";
  if (isText(value)) return typeof value === "string" ? value : value.join("");
  return JSON.stringify(value);
}

function sizeOf(value) {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 8;
  return Object.values(value).reduce((sum, one) => sum + sizeOf(one), 16);
}
