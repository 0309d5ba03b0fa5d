// One WebSocket for the whole page. Subscriptions outlive it: each knows the next offset that it wants, and asks for
// exactly that when the connection is back. So nothing is missing and nothing comes twice.

const BUDGET_MS = 8; // of each animation frame; the rest is for whoever clicks
const SLEEP_AFTER_MS = 15_000;
const BACKOFF_MS = [250, 500, 1000, 2000, 5000, 10_000];

/** Unique to this page load: two tabs must not take each other's subscriptions over. */
const PAGE = [...crypto.getRandomValues(new Uint8Array(6))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** A worker's address is code to the browser; this is the only one there is. */
const ADDRESS = "/page/live/socket_worker.js";
const trusted = globalThis.trustedTypes?.createPolicy("himalia-worker", { createScriptURL: () => ADDRESS });

/**
 * `state` is "connecting", "open", "waiting" (to try again), "catching up", "asleep" (the page is hidden) or "closed". A `change`
 * event tells of each.
 *
 * The socket itself is in a worker. What comes is pulled from there in batches, and taken in a few milliseconds per
 * frame. If the worker's queue overflows it hangs up; when all is worked off we come back at the offset where we were.
 */
export class Connection extends EventTarget {
  #url;
  #worker = new Worker(trusted?.createScriptURL("") ?? ADDRESS);
  #subscriptions = new Map();
  #requests = 0;
  #batch = [];
  #taken = 0;
  #left = 0; // messages that the worker still has
  #isPlanned = false;
  #hasOverflowed = false;
  #failures = 0;
  #timer = null;
  #sleepTimer = null;
  state = "closed";

  constructor(url) {
    super();
    this.#url = url;
    this.#worker.onmessage = ({ data }) => this.#heard(data);
    this.#worker.postMessage({ pull: true });
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    addEventListener("online", () => this.retry());
  }

  open() {
    clearTimeout(this.#timer);
    if (this.state === "connecting" || this.state === "open") return;
    this.#become("connecting");
    this.#worker.postMessage({ open: this.#url });
  }

  /** Try again at once, if it was waiting. */
  retry() {
    if (this.state !== "waiting") return;
    this.#failures = 0;
    this.open();
  }

  close() {
    this.#hangUp("closed");
  }

  /**
   * Follow a topic. `wanted` holds what a subscribe message may: last_n, from, epoch, since, filter, policy, limit.
   * `take` gets the server's messages about it in order, in batches: events, notices, errors, and the ack of each
   * (re)subscription. One subscription per topic, since events do not say for which subscription they are.
   */
  subscribe(topic, wanted, take) {
    this.#subscriptions.get(topic)?.close();
    const subscription = new Subscription(this, topic, wanted, take);
    this.#subscriptions.set(topic, subscription);
    subscription.ask();
    return subscription;
  }

  nextRequestId() {
    this.#requests += 1;
    return `r${this.#requests}`;
  }

  /** Whether it could be sent; what was not is asked for again when the connection opens. */
  send(message) {
    if (this.state !== "open") return false;
    this.#worker.postMessage({ send: JSON.stringify(message) });
    return true;
  }

  drop(subscription) {
    if (this.#subscriptions.get(subscription.topic) === subscription) this.#subscriptions.delete(subscription.topic);
  }

  // The socket

  #heard(data) {
    if (data.opened) this.#onOpen();
    else if (data.closed) this.#onClose();
    else if (data.overflowed) this.#onOverflow(data);
    else if (data.batch) this.#onBatch(data);
  }

  #onOpen() {
    if (this.state !== "connecting") return;
    this.#failures = 0;
    this.#become("open");
    for (const subscription of this.#subscriptions.values()) subscription.ask();
  }

  #onClose() {
    if (this.state !== "connecting" && this.state !== "open") return;
    const wait = BACKOFF_MS[Math.min(this.#failures, BACKOFF_MS.length - 1)];
    this.#failures += 1;
    this.#become("waiting");
    this.#timer = setTimeout(() => this.open(), wait * (0.75 + Math.random() / 2));
  }

  #onOverflow({ left }) {
    if (this.state !== "open") return;
    this.#left = left;
    this.#hasOverflowed = true;
    this.#become("catching up");
  }

  #hangUp(state) {
    clearTimeout(this.#timer);
    this.#hasOverflowed = false;
    this.#worker.postMessage({ close: true });
    this.#become(state);
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    if (state !== "open") for (const subscription of this.#subscriptions.values()) subscription.lose();
    this.dispatchEvent(new Event("change"));
  }

  #onVisibility() {
    clearTimeout(this.#sleepTimer);
    if (document.hidden) {
      this.#sleepTimer = setTimeout(() => this.state !== "closed" && this.#hangUp("asleep"), SLEEP_AFTER_MS);
    } else if (this.state === "asleep") {
      this.open();
    } else {
      this.retry();
    }
  }

  // What comes

  #onBatch({ batch, left }) {
    this.#batch = batch;
    this.#taken = 0;
    this.#left = left;
    this.#plan();
  }

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    const take = () => this.#take();
    if (document.hidden) setTimeout(take, 250);
    else requestAnimationFrame(take);
  }

  #take() {
    this.#isPlanned = false;
    const deadline = performance.now() + BUDGET_MS;
    const batches = new Map();
    while (this.#taken < this.#batch.length && performance.now() < deadline) {
      const text = this.#batch[this.#taken];
      this.#batch[this.#taken] = null;
      this.#taken += 1;
      this.#sort(messageOf(text), batches);
    }
    for (const [subscription, messages] of batches) subscription.give(messages);
    if (this.#taken < this.#batch.length) return this.#plan();
    this.#worker.postMessage({ pull: true });
    if (this.#hasOverflowed && !this.#left) {
      this.#hasOverflowed = false;
      this.open();
    }
  }

  #sort(message, batches) {
    for (const subscription of this.#concerned(message)) {
      if (!subscription.admits(message)) continue;
      if (!batches.has(subscription)) batches.set(subscription, []);
      batches.get(subscription).push(message);
    }
  }

  #concerned(message) {
    if (message.topic !== undefined) {
      const found = this.#subscriptions.get(message.topic);
      return found ? [found] : [];
    }
    return [...this.#subscriptions.values()].filter((one) => one.requestId === message.request_id);
  }
}

/** A server's message with its own text, for those parts of it that parsing would change: payloads. */
function messageOf(text) {
  try {
    return Object.assign(JSON.parse(text), { text });
  } catch (error) {
    console.warn("a message is not JSON:", error.message);
    return { type: "broken" };
  }
}

/** A cursor of ours on one topic. */
class Subscription {
  #connection;
  #wanted;
  #take;
  #isAnswered = false;
  #isClosed = false;
  #clientId;
  requestId = "";
  next = null;
  epoch = null;

  constructor(connection, topic, wanted, take) {
    this.#connection = connection;
    this.topic = topic;
    this.#wanted = wanted;
    this.#take = take;
    this.#clientId = `page-${PAGE}-${connection.nextRequestId()}`;
  }

  /** Subscribe on the connection as it is now: as wanted at first, later from where we are. */
  ask() {
    if (this.#isClosed) return;
    this.requestId = this.#connection.nextRequestId();
    this.#isAnswered = false;
    const { last_n, from, since, epoch, ...rest } = this.#wanted;
    const place = this.next === null ? { last_n, from, since, epoch } : { from: this.next, epoch: this.epoch };
    const { topic, requestId: request_id } = this;
    this.#connection.send({ type: "subscribe", topic, client_id: this.#clientId, request_id, ...rest, ...place });
  }

  /** The connection is gone; what is still queued of it is ours, so the next offset may go on growing. */
  lose() {
    this.requestId = "";
  }

  /** Whether a message is for this subscription as it is now; keeps count of where we are. */
  admits(message) {
    if (this.#isClosed) return false;
    if (message.type === "ack") return message.request_id === this.requestId && this.#place(message);
    if (message.type === "error" && message.request_id) return message.request_id === this.requestId;
    // Before the ack it belongs to a subscription that this one has replaced.
    if (!this.#isAnswered) return false;
    if (message.type !== "event") return message.client_id === undefined || message.client_id === this.#clientId;
    if (this.next !== null && message.offset < this.next) return false;
    this.next = message.offset + 1;
    return true;
  }

  #place(ack) {
    this.#isAnswered = true;
    if (ack.offset === undefined) return true;
    // A topic that was made anew counts from 0 again; so does one that lost what we had come to.
    if (this.epoch !== ack.epoch || this.next === null || ack.offset < this.next) this.next = ack.offset;
    this.epoch = ack.epoch;
    return true;
  }

  give(messages) {
    if (!this.#isClosed) this.#take(messages, this);
  }

  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#connection.drop(this);
    this.#connection.send({ type: "unsubscribe", topic: this.topic, client_id: this.#clientId });
  }
}
