// A kernel's topic, folded into what a console shows: requests with their outputs, and events of the kernel.
// Without elements: the result depends only on the records and their order, so two browsers show the same.

import { textAt } from "./json_text.js";
import { ENDED, RequestState, msOf } from "./request_state.js";
import { Terminal } from "../widgets/terminal.js";
import { Widgets } from "./comm_state.js";

const KEPT_CHARS_MAX = 64_000_000;
const OUTPUTS_MAX = 2000;
const UNKNOWN_MAX = 1000; // requests that only messages of the kernel have named
const SHOWS = new Set(["stream", "display_data", "execute_result", "error", "clear_output", "update_display_data"]);
const COMMS = new Set(["comm_open", "comm_msg", "comm_close"]);
export const WIDGET = "application/vnd.jupyter.widget-view+json";
export { ENDED };

/** Events of the kernel that end all requests, and whether all output precedes them. */
const ENDINGS = {
  died: { status: "died", reason: "the kernel died", isFinal: true },
  stopped: { status: "aborted", reason: "the kernel was stopped", isFinal: true },
  restarting: { status: "aborted", reason: "the kernel was restarted", isFinal: false },
};

/** One request: its code, its state, its outputs. */
export class Cell {
  kind = "cell";
  outputs = [];
  prompt = null; // the input request of the code
  clearFirst = false;
  isLoose = false; // output of an unknown request: the log has lost it, or it was no request to run code
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
export class KernelSession {
  #cells = new Map();
  #requests = new Map(); // their states, also of requests that are not known yet
  #unknown = new Set();
  #displays = new Map();
  #widgets = new Widgets();
  #widgetDisplays = new Map(); // by the id of the model that they show
  #chars = 0;
  #oldestKept = 0;
  entries = [];
  changed = new Set();
  state = null; // the last state that the kernel reported: "busy", "idle", …

  cell(requestId) {
    return this.#cells.get(requestId);
  }

  /** The code of all requests, oldest first: the history of the input line. */
  codes() {
    return this.entries.filter((entry) => entry.code).map((entry) => entry.code);
  }

  /** Apply the next record. Never throws, whatever a kernel sends. */
  apply(record) {
    const headers = record.message.headers ?? {};
    const payload = record.message.payload;
    const content = isObject(payload) && isObject(payload.content) ? payload.content : {};
    const date = isObject(payload) && isObject(payload.header) ? msOf(payload.header.date) : NaN;
    const message = { record, content, date, type: String(headers.msg_type ?? ""), parent: String(headers.parent_id ?? "") };
    if (message.type === "kernel_event") this.#event(message);
    else if (message.type === "status") this.#status(message);
    else if (message.type === "execute_input") this.#apply("input", message, message.parent);
    else if (message.type === "execute_request") this.#apply("sent", message, record.message.id);
    else if (message.type === "execute_reply") this.#apply("reply", message, message.parent);
    else if (message.type === "input_request") this.#onInputRequest(message);
    else if (message.type === "input_reply") this.#onInputReply(message);
    else if (COMMS.has(message.type)) this.#comm(message);
    else if (SHOWS.has(message.type)) this.#onOutput(message);
  }

  /** Add a note between the requests, such as a gap. */
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

  #event(message) {
    const { record, content, parent } = message;
    const event = content.event;
    if (event === "request_queued") {
      this.#apply("queued", message, parent);
    } else if (event === "request_closed") {
      if (!this.#cells.get(parent)?.hasEnded) this.#close(message);
    } else {
      if (Object.hasOwn(ENDINGS, event)) this.#end(ENDINGS[event], message);
      this.#kernelEvent(event, content, record.ts);
    }
  }

  #close(message) {
    const request = this.#requestOf(message.parent);
    if (!request.isKnown) {
      request.isCut = true;
      this.#apply("queued", { ...message, record: { ...message.record, ts: null } }, message.parent);
    }
    this.#apply("closed", message, message.parent);
  }

  #end({ status, reason, isFinal }, message) {
    const detail = textOrNull(message.content.reason);
    const content = { status, reason: detail ? `${reason}: ${detail}` : reason };
    for (const [requestId, request] of this.#requests) {
      if (request.isKnown && !request.isClosed) this.#apply("ended", { ...message, content }, requestId);
    }
    if (!isFinal) return;
    this.#requests.clear();
    this.#unknown.clear();
  }

  #kernelEvent(event, content, ts) {
    const reason = content.reason ? `: ${textOf(content.reason)}` : "";
    const message = {
      started: ["Kernel started", "good"], attached: ["Attached to the kernel", "good"],
      reattached: ["The server is back; the output of the meantime follows", "good"],
      interrupted: ["Interrupted", "warn"], restarting: [`Restarting${reason}`, "warn"],
      restarted: ["Kernel restarted", "good"], moved: [`Kernel started on other ports${reason}`, "good"],
      died: [`The kernel died${reason}`, "bad"],
      stopped: [`Kernel stopped${reason === ": asked to" ? "" : reason}`, "warn"],
      gap: [`${content.count ? `${content.count} messages are missing` : "Messages are missing here"}${reason}`, "bad"],
      message_too_large: [`A ${textOf(content.msg_type)} message of ${content.size_bytes} bytes was too large to store`, "bad"],
    }[event] ?? [`${textOf(event)}${reason}`, ""];
    if (["died", "stopped"].includes(event)) this.state = "dead";
    this.note(message[0], message[1], ts);
  }

  #status(message) {
    const state = message.content.execution_state;
    this.state = String(state ?? this.state);
    if (state === "busy" || state === "idle") this.#apply(state, message, message.parent);
  }

  #onInputRequest({ record, content, parent }) {
    const cell = this.#cellOf(parent, record);
    cell.prompt = { text: textOf(content.prompt), isPassword: content.password === true };
  }

  #onInputReply({ content, parent }) {
    const cell = this.#cells.get(parent) ?? [...this.#cells.values()].find((one) => one.prompt);
    if (!cell?.prompt) return;
    const { text, isPassword } = cell.prompt;
    cell.prompt = null;
    this.#stream(cell, "stdout", `${text}${isPassword ? "········" : textOf(content.value)}\n`);
    this.#touch(cell);
  }

  // Outputs

  #onOutput(message) {
    if (message.type === "error") this.#apply("error", message, message.parent);
    if (message.type === "execute_result") this.#apply("result", message, message.parent);
    this.#output(message);
  }

  #output({ record, content, type, parent }) {
    if (type === "update_display_data") return this.#update(content, record);
    // Output without a request is shown where it was received, not with earlier output of that kind.
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
    const changed = this.#widgets.apply(type, content);
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

  /** Release the oldest outputs when too much is kept: the log has them, and each request has its own address. */
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

/** A display by media type: `data` as parsed, and `json`, the text as written, for values that are not text. */
function formsOf(content, record) {
  const data = isObject(content.data) ? content.data : {};
  const forms = Object.keys(data).filter((form) => form.endsWith("json") || !isText(data[form]));
  return { data, json: Object.fromEntries(forms.map((form) => [form, writtenAs(record, form)])) };
}

const writtenAs = (record, form) => textAt(record.text, "message", "payload", "content", "data", form) ?? "";

/** An execution count; null for anything else, also for `7.0`. */
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

/** Whether a value is text in Jupyter's form: a string, or a list of lines. */
const isText = (value) => typeof value === "string" || (Array.isArray(value) && value.every((line) => typeof line === "string"));

/** The text of such a value; of any other value its JSON. */
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
