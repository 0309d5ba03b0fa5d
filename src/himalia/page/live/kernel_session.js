// A kernel's topic, folded into what a person sees: requests with their outputs, and what happened to the kernel.
// Without elements: it depends only on the records and their order, so two browsers show the same.

import { textAt } from "./json_text.js";
import { ENDED, RequestState, msOf } from "./request_state.js";
import { Terminal } from "../widgets/terminal.js";
import { Widgets } from "./comm_state.js";

const KEPT_CHARS_MAX = 64_000_000;
const OUTPUTS_MAX = 2000;
const UNKNOWN_MAX = 1000; // requests of which only messages of the kernel have come
const SHOWS = new Set(["stream", "display_data", "execute_result", "error", "clear_output", "update_display_data"]);
const COMMS = new Set(["comm_open", "comm_msg", "comm_close"]);
export const WIDGET = "application/vnd.jupyter.widget-view+json";
export { ENDED };

/** Events of the kernel after which nothing that ran continues, and whether all of its output came before them. */
const ENDINGS = {
  died: { status: "died", reason: "the kernel died", isFinal: true },
  stopped: { status: "aborted", reason: "the kernel was stopped", isFinal: true },
  restarting: { status: "aborted", reason: "the kernel was restarted", isFinal: false },
};

/** One request: its code, where it stands, what it showed. */
export class Cell {
  kind = "cell";
  outputs = [];
  prompt = null; // what the code asks on stdin
  clearFirst = false;
  isLoose = false; // an output whose request we know nothing of: the log has lost it, or it was not to run code
  isReleased = false; // its outputs are no longer kept here, only in the log
  omitted = 0;
  chars = 0;
  version = 0;

  constructor(requestId, offset, request) {
    this.requestId = requestId;
    this.offset = offset;
    this.request = request;
  }

  get code() {
    return this.request.code;
  }

  get count() {
    return this.request.count;
  }

  get status() {
    return this.request.shownStatus;
  }

  get reason() {
    return this.request.reason;
  }

  get queuedAt() {
    return this.request.queuedAt;
  }

  get startedAt() {
    return this.request.startedAt;
  }

  get finishedAt() {
    return this.request.closedAt;
  }

  get ranMs() {
    return this.request.ranMs;
  }

  get hasEnded() {
    return this.request.isClosed;
  }
}

/** `entries` are cells and notes in the order they began; `changed` collects those that changed. */
export class Session {
  #cells = new Map();
  #requests = new Map(); // their states; before a request is known, what the kernel said of it early
  #unknown = new Set();
  #displays = new Map();
  #widgets = new Widgets();
  #widgetDisplays = new Map(); // by the id of the model that they show
  #chars = 0;
  #oldestKept = 0;
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
    else if (told.type === "execute_input") this.#apply("input", told, told.parent);
    else if (told.type === "execute_request") this.#apply("sent", told, record.message.id);
    else if (told.type === "execute_reply") this.#apply("reply", told, told.parent);
    else if (told.type === "input_request") this.#asks(told);
    else if (told.type === "input_reply") this.#answered(told);
    else if (COMMS.has(told.type)) this.#comm(told);
    else if (SHOWS.has(told.type)) this.#shows(told);
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
      cell = new Cell(requestId, record.offset, this.#requestOf(requestId));
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

  #requestOf(requestId) {
    let request = this.#requests.get(requestId);
    if (!request) {
      request = new RequestState();
      this.#requests.set(requestId, request);
      this.#unknown.add(requestId);
      if (this.#unknown.size > UNKNOWN_MAX) {
        const [oldest] = this.#unknown;
        this.#unknown.delete(oldest);
        if (!this.#cells.has(oldest)) this.#requests.delete(oldest);
      }
    }
    return request;
  }

  /** Apply an event to the state of a request; it gets its cell when it becomes known. */
  #apply(kind, { record, content, date, type }, requestId) {
    if (!requestId) return;
    const request = this.#requestOf(requestId);
    const wasKnown = request.isKnown;
    const event = {
      kind, type, date, ts: record.ts, code: textOrNull(content.code), count: countOf(content, record),
      status: content.status, reason: textOrNull(content.reason) ?? "",
    };
    if (!request.apply(event) || !request.isKnown) return;
    if (!wasKnown) this.#become(requestId, request, record);
    const cell = this.#cells.get(requestId);
    if (request.isClosed) cell.prompt = null;
    this.#touch(cell);
  }

  /** A request is known from now on: its cell is a new one, unless outputs came before. */
  #become(requestId, request, record) {
    this.#unknown.delete(requestId);
    if (this.#cells.get(requestId)?.request !== request) this.#cells.delete(requestId);
    this.#cellOf(requestId, record).isLoose = false;
  }

  #event(told) {
    const { record, content, parent } = told;
    const event = content.event;
    if (event === "request_queued") {
      this.#apply("queued", told, parent);
    } else if (event === "request_closed") {
      if (!this.#cells.get(parent)?.hasEnded) this.#close(told);
    } else {
      if (Object.hasOwn(ENDINGS, event)) this.#end(ENDINGS[event], told);
      this.#kernelEvent(event, content, record.ts);
    }
  }

  #close(told) {
    const request = this.#requestOf(told.parent);
    if (!request.isKnown) {
      request.isCut = true;
      this.#apply("queued", { ...told, record: { ...told.record, ts: null } }, told.parent);
    }
    this.#apply("closed", told, told.parent);
  }

  #end({ status, reason, isFinal }, told) {
    const said = textOrNull(told.content.reason);
    const content = { status, reason: said ? `${reason}: ${said}` : reason };
    for (const [requestId, request] of this.#requests) {
      if (request.isKnown && !request.isClosed) this.#apply("ended", { ...told, content }, requestId);
    }
    if (!isFinal) return;
    this.#requests.clear();
    this.#unknown.clear();
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

  #status(told) {
    const state = told.content.execution_state;
    this.state = String(state ?? this.state);
    if (state === "busy" || state === "idle") this.#apply(state, told, told.parent);
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

  #shows(told) {
    if (told.type === "error") this.#apply("error", told, told.parent);
    if (told.type === "execute_result") this.#apply("result", told, told.parent);
    this.#output(told);
  }

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

/** An execution count; null for what is none, `7.0` among it. */
function countOf(content, record) {
  if (!Number.isInteger(content.execution_count)) return null;
  const written = record.text && textAt(record.text, "message", "payload", "content", "execution_count");
  return /^-?\d+$/.test(written ?? content.execution_count) ? content.execution_count : null;
}

const textOrNull = (value) => (typeof value === "string" ? value : null);

function errorOf(content) {
  const traceback = Array.isArray(content.traceback) ? content.traceback.map(textOf) : [];
  return { kind: "error", ename: textOf(content.ename), evalue: textOf(content.evalue), traceback };
}

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
