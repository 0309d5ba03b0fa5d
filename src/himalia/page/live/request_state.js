// The life of a request: the state machine of himalia/jupyter/lifecycle.py, by the same table.
// tests/page/live/test_traces.py compares the two tables, and what both make of the recorded traces.

const TABLE = `
stage    queued  sent    busy    input   result  error   idle    reply   closed  ended
unknown  queued  sent    unknown running unknown -       unknown -       -       -
queued   queued  sent    busy    running queued  queued  idle    replied closed  closed
sent     sent    sent    busy    running sent    sent    idle    replied closed  closed
busy     busy    busy    busy    running busy    busy    idle    replied closed  closed
running  running running running running running running idle    replied closed  closed
idle     idle    idle    idle    idle    idle    idle    idle    done    closed  closed
replied  replied replied replied replied replied replied done    replied closed  closed
done     done    done    done    done    done    done    done    done    closed  closed
closed   -       -       -       -       -       -       -       -       -       -`;

/** The stage after an event, by stage and event; events that change nothing at all are missing. */
export const TRANSITIONS = parseTable(TABLE);

export const ENDED = new Set(["ok", "error", "aborted", "died", "timeout", "cancelled", "stale"]);
const DATE_TOLERANCE_MS = 1000;

/** A request after the events so far. Times are those of the records; dates are the kernel's own, in ms since 1970. */
export class RequestState {
  stage = "unknown";
  origin = "foreign"; // "queued" if it waited in the server's queue, "sent" if it only passed through the server
  awaitsReply = false;
  isCut = false; // the log no longer has its beginning, only what came after
  code = null;
  queuedAt = null;
  sentAt = null;
  startedAt = null;
  closedAt = null;
  busyDate = NaN;
  idleDate = NaN;
  count = null;
  hasFailed = false;
  replyStatus = null;
  status = "running";
  reason = "";

  get isKnown() {
    return this.stage !== "unknown";
  }

  get isClosed() {
    return this.stage === "closed";
  }

  /** Its state in a word. */
  get shownStatus() {
    if (this.isClosed) return this.status;
    return this.startedAt === null && !["running", "done"].includes(this.stage) ? "queued" : "running";
  }

  /** How long it ran, in ms, by the rule of jupyter/duration.py; null if that is not known. */
  get ranMs() {
    if (!this.startedAt || !this.closedAt) return null;
    const [started, closed] = [msOf(this.startedAt), msOf(this.closedAt)];
    const accepted = this.queuedAt ?? this.sentAt;
    const earliest = accepted ? msOf(accepted) : started;
    const isPlausible = earliest - DATE_TOLERANCE_MS <= this.busyDate && this.busyDate <= this.idleDate && this.idleDate <= closed + DATE_TOLERANCE_MS;
    const ran = isPlausible ? this.idleDate - this.busyDate : Math.max(closed - started, 0);
    return Math.round(ran * 1000) / 1000;
  }

  /** Apply an event `{kind, ts, date, code, count, status, reason, type}`; false if it changes nothing. */
  apply(event) {
    const stage = TRANSITIONS[this.stage][event.kind];
    if (stage === undefined) return false;
    this.stage = stage;
    CHANGES[event.kind](this, event);
    const isDone = this.stage === "done" || (this.stage === "idle" && !this.awaitsReply);
    if (isDone && this.origin !== "queued") this.#close(event.ts, this.replyStatus ?? (this.hasFailed ? "error" : "ok"));
    return true;
  }

  #close(ts, status) {
    this.stage = "closed";
    this.closedAt = ts;
    this.status = status;
  }
}

const count = (state, event) => {
  state.count = event.count ?? state.count;
};

const CHANGES = {
  queued(state, event) {
    state.code ??= event.code;
    state.origin = "queued";
    state.awaitsReply = true;
    state.queuedAt ??= event.ts;
  },
  sent(state, event) {
    state.code ??= event.code;
    if (state.origin !== "queued") state.origin = "sent";
    state.awaitsReply = !event.type.startsWith("comm_");
    state.sentAt ??= event.ts;
  },
  busy(state, event) {
    state.startedAt ??= event.ts;
    state.busyDate = earlier(state.busyDate, event.date);
  },
  input(state, event) {
    state.code ??= event.code;
    count(state, event);
  },
  result: count,
  error(state) {
    state.hasFailed = true;
  },
  idle(state, event) {
    state.idleDate = earlier(state.idleDate, event.date);
  },
  reply(state, event) {
    count(state, event);
    state.replyStatus = ["error", "aborted"].includes(event.status) ? event.status : "ok";
  },
  closed(state, event) {
    count(state, event);
    CHANGES.ended(state, event);
  },
  ended(state, event) {
    state.closedAt = event.ts;
    state.status = ENDED.has(event.status) ? event.status : "error";
    state.reason = event.reason;
  },
};

function parseTable(table) {
  const [[, ...kinds], ...rows] = table.trim().split("\n").map((line) => line.split(/\s+/));
  return Object.fromEntries(rows.map(([stage, ...targets]) => [
    stage,
    Object.fromEntries(kinds.map((kind, column) => [kind, targets[column]]).filter(([, target]) => target !== "-")),
  ]));
}

/** A time in ms since 1970, to the microsecond: `Date.parse` cuts what is below a millisecond. NaN for what is none. */
export function msOf(text) {
  const below = /\.\d{3}(\d{1,3})/.exec(text);
  return Date.parse(text) + (below ? Number(below[1].padEnd(3, "0")) / 1000 : 0);
}

/** The earlier of two times in ms; NaN is none. */
const earlier = (one, other) => (other < one || Number.isNaN(one) ? other : one);
