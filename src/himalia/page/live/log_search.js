// Searching a topic with a filter, a window of offsets at a time. The server evaluates the filter and sends only matching
// records; the window grows while few match, and shrinks if an answer is slow or large.

import { ApiError, textUpTo, topicPath } from "./api.js";
import { count, plural } from "../widgets/format.js";
import { itemsAt } from "./json_text.js";

const WINDOW_FIRST = 1000;
const WINDOW_MAX = 20_000;
const QUICK_MS = 150;
const SLOW_MS = 600;
const ANSWER_CHARS_MAX = 8_000_000;
const FOUND_AT_ONCE = 500;
const RETRY_AFTER_MS = 1000;

/**
 * `state` is "running", "stopped" (by the user), "paused" (enough was found; `resume` continues), "done" or "failed".
 * `onFound(records, answer)` gets the matches of a window, oldest first; `onChange()` is called after every change.
 */
export class LogSearch {
  #topic;
  #filter;
  #isBack;
  #onFound;
  #onChange;
  #epoch;
  #window = WINDOW_FIRST;
  #until = FOUND_AT_ONCE;
  #abort = null;
  #since = null; // a time to begin at, until its offset is known
  state = "stopped";
  error = null;
  at = null; // backwards, the oldest offset searched; forwards, the next one to search
  first = 0;
  end = 0;
  found = 0;
  failed = null; // on how many records the filter failed, on which first, and why

  constructor(topic, filter, { onFound, onChange }) {
    this.#topic = topic;
    this.#filter = filter;
    this.#onFound = onFound;
    this.#onChange = onChange;
  }

  /** Search before an offset, newest first. */
  back(from, epoch) {
    this.#isBack = true;
    this.#epoch = epoch;
    this.at = this.end = from;
    return this.#run();
  }

  /** Search from `{from}` or `{since}` to the end. */
  forward({ from, since }) {
    this.#isBack = false;
    this.at = from ?? null;
    this.#since = since ?? null;
    return this.#run();
  }

  stop() {
    this.#abort?.abort();
    if (this.state === "running") this.#setState("stopped");
  }

  /** Continue until as many records again are found. */
  resume() {
    if (this.state === "running" || this.state === "done") return;
    this.#until = this.found + FOUND_AT_ONCE;
    this.#run();
  }

  /** The progress in words. */
  get summary() {
    const found = `${count(this.found)} found`;
    const failed = this.failed ? `; the filter failed on ${plural(this.failed.count, "record")} (${this.failed.message}, offset ${count(this.failed.offset)})` : "";
    if (this.state === "failed") return `The search failed: ${this.error.message}`;
    if (this.at === null) return "Searching";
    if (this.state === "done") return `${this.#summaryOfAll(found)}${failed}`;
    const how = this.state === "running" ? "Searched" : "Stopped: searched";
    const where = this.#isBack ? `back to offset ${count(this.at)} of ${count(this.first)} to ${count(this.end)}` : `up to offset ${count(this.at)} of ${count(this.end)}`;
    return `${how} ${where}; ${found}${this.state === "paused" ? ", there may be more" : ""}${failed}`;
  }

  #summaryOfAll(found) {
    if (!this.#isBack) return `Searched to the end; ${found}`;
    return `Searched all ${plural(Math.max(this.end - this.first, 0), "kept record")}; ${found}`;
  }

  async #run() {
    const abort = new AbortController();
    this.#abort = abort;
    this.error = null;
    this.#setState("running");
    try {
      while (this.state === "running" && !abort.signal.aborted) await this.#step(abort.signal);
    } catch (error) {
      if (error.name === "AbortError" || abort.signal.aborted) return;
      this.error = error;
      this.#setState("failed");
    }
  }

  async #step(signal) {
    const from = this.#isBack ? Math.max(this.at - this.#window, 0) : this.at;
    const until = this.at;
    const params = { limit: this.#isBack ? until - from : this.#window, epoch: this.#epoch, filter: this.#filter };
    const place = this.#since !== null ? { since: this.#since } : { from };
    if (this.#isBack && until <= this.first) return this.#setState("done");
    const began = performance.now();
    const text = await this.#request({ ...place, ...params }, signal);
    if (text === null) {
      this.#window = Math.max(Math.floor(this.#window / 4), 1);
      return;
    }
    const answer = JSON.parse(text);
    // If retention has passed the window, the server begins at the first kept record, and may repeat records.
    const records = recordsIn(text, answer).filter(({ offset }) => !this.#isBack || offset < until);
    this.#adapt(performance.now() - began, records.length);
    this.#onAnswer(answer, from, records);
  }

  #onAnswer(answer, from, records) {
    this.#since = null;
    this.#epoch = answer.epoch;
    this.first = answer.first;
    this.found += records.length;
    if (this.#isBack) this.at = Math.max(from, Math.min(answer.first, this.at));
    else {
      this.at = answer.next;
      this.end = answer.end;
    }
    if (answer.failed) this.failed = { ...(this.failed ?? answer.failed), count: (this.failed?.count ?? 0) + answer.failed.count };
    this.#onFound(records, answer);
    const isDone = this.#isBack ? this.at <= answer.first : answer.next >= answer.end;
    if (isDone) this.#setState("done");
    else if (this.found >= this.#until) this.#setState("paused");
    else this.#onChange();
  }

  /** The answer's text; null if it is too large. A request that fails because of an outage is repeated. */
  async #request(params, signal) {
    for (;;) {
      try {
        return await textUpTo(topicPath(this.#topic, "/messages"), params, signal, params.limit > 1 ? ANSWER_CHARS_MAX : Infinity);
      } catch (error) {
        const isTransient = error instanceof ApiError && [0, 401, 503].includes(error.status);
        if (!isTransient || signal.aborted) throw error;
        await (error.status === 401 ? signedIn() : new Promise((done) => setTimeout(done, RETRY_AFTER_MS)));
        signal.throwIfAborted();
      }
    }
  }

  #adapt(tookMs, number) {
    if (tookMs > SLOW_MS || number > FOUND_AT_ONCE) this.#window = Math.max(Math.floor(this.#window / 2), 1);
    else if (tookMs < QUICK_MS && number < FOUND_AT_ONCE / 4) this.#window = Math.min(this.#window * 2, WINDOW_MAX);
  }

  #setState(state) {
    this.state = state;
    this.#onChange();
  }
}

/** Resolves when the user has signed in again. */
const signedIn = () => new Promise((done) => addEventListener("himalia:signed-in", done, { once: true }));

/** The records of an answer, each with its own text. */
function recordsIn(text, answer) {
  const texts = answer.messages.length ? itemsAt(text, "messages") : [];
  return answer.messages.map((message, index) => ({ ...message, text: texts[index] }));
}
