// One WebSocket for the whole page. Subscriptions outlive it: each keeps its next offset, and resumes there after a
// reconnection, so that no record is missing or repeated.

const BUDGET_MS = 8; // of each animation frame; the rest is for the user
const SLEEP_AFTER_MS = 15_000;
const BACKOFF_MS = [250, 500, 1000, 2000, 5000, 10_000];

/** Unique to this page load: two tabs must not replace each other's subscriptions. */
const PAGE = [...crypto.getRandomValues(new Uint8Array(6))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** The browser treats the address of a worker as code; this is the only one that the policy allows. */
const ADDRESS = "/page/live/socket_worker.js";
const trusted = globalThis.trustedTypes?.createPolicy("himalia-worker", { createScriptURL: () => ADDRESS });

/**
 * `state` is "connecting", "open", "waiting" (to reconnect), "catching up", "asleep" (the page is hidden) or "closed"; each
 * change dispatches a `change` event.
 *
 * The socket is in a worker. Messages are pulled from there in batches and processed for a few milliseconds per frame. If
 * the worker's queue overflows it closes the socket; the page processes the queue, then resumes at its next offset.
 */
export class Connection extends EventTarget {
  #url;
  #worker = new Worker(trusted?.createScriptURL("") ?? ADDRESS);
  #subscriptions = new Map();
  #requests = 0;
  #batch = [];
  #processed = 0;
  #left = 0; // messages that the worker still has
  #isScheduled = false;
  #hasOverflowed = false;
  #failures = 0;
  #timer = null;
  #sleepTimer = null;
  state = "closed";

  constructor(url) {
    super();
    this.#url = url;
    this.#worker.onmessage = ({ data }) => this.#onWorkerMessage(data);
    this.#worker.postMessage({ pull: true });
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    addEventListener("online", () => this.retry());
  }

  open() {
    clearTimeout(this.#timer);
    if (this.state === "connecting" || this.state === "open") return;
    this.#setState("connecting");
    this.#worker.postMessage({ open: this.#url });
  }

  /** Reconnect at once, if it is waiting. */
  retry() {
    if (this.state !== "waiting") return;
    this.#failures = 0;
    this.open();
  }

  close() {
    this.#disconnect("closed");
  }

  /**
   * Follow a topic. `wanted` holds what a subscribe message may: last_n, from, epoch, since, filter, policy, limit.
   * `onMessages` gets the server's messages about it in order, in batches: events, notices, errors, and the ack of each
   * (re)subscription. One subscription per topic: events do not name their subscription.
   */
  subscribe(topic, wanted, onMessages) {
    this.#subscriptions.get(topic)?.close();
    const subscription = new Subscription(this, topic, wanted, onMessages);
    this.#subscriptions.set(topic, subscription);
    subscription.request();
    return subscription;
  }

  nextRequestId() {
    this.#requests += 1;
    return `r${this.#requests}`;
  }

  /** Send a message if the connection is open; return whether it was. Subscriptions are requested again when it opens. */
  send(message) {
    if (this.state !== "open") return false;
    this.#worker.postMessage({ send: JSON.stringify(message) });
    return true;
  }

  drop(subscription) {
    if (this.#subscriptions.get(subscription.topic) === subscription) this.#subscriptions.delete(subscription.topic);
  }

  // The socket

  #onWorkerMessage(data) {
    if (data.opened) this.#onOpen();
    else if (data.closed) this.#onClose();
    else if (data.overflowed) this.#onOverflow(data);
    else if (data.batch) this.#onBatch(data);
  }

  #onOpen() {
    if (this.state !== "connecting") return;
    this.#failures = 0;
    this.#setState("open");
    for (const subscription of this.#subscriptions.values()) subscription.request();
  }

  #onClose() {
    if (this.state !== "connecting" && this.state !== "open") return;
    const wait = BACKOFF_MS[Math.min(this.#failures, BACKOFF_MS.length - 1)];
    this.#failures += 1;
    this.#setState("waiting");
    this.#timer = setTimeout(() => this.open(), wait * (0.75 + Math.random() / 2));
  }

  #onOverflow({ left }) {
    if (this.state !== "open") return;
    this.#left = left;
    this.#hasOverflowed = true;
    this.#setState("catching up");
  }

  #disconnect(state) {
    clearTimeout(this.#timer);
    this.#hasOverflowed = false;
    this.#worker.postMessage({ close: true });
    this.#setState(state);
  }

  #setState(state) {
    if (state === this.state) return;
    this.state = state;
    if (state !== "open") for (const subscription of this.#subscriptions.values()) subscription.onDisconnect();
    this.dispatchEvent(new Event("change"));
  }

  #onVisibility() {
    clearTimeout(this.#sleepTimer);
    if (document.hidden) {
      this.#sleepTimer = setTimeout(() => this.state !== "closed" && this.#disconnect("asleep"), SLEEP_AFTER_MS);
    } else if (this.state === "asleep") {
      this.open();
    } else {
      this.retry();
    }
  }

  // Received messages

  #onBatch({ batch, left }) {
    this.#batch = batch;
    this.#processed = 0;
    this.#left = left;
    this.#schedule();
  }

  #schedule() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    const process = () => this.#processBatch();
    if (document.hidden) setTimeout(process, 250);
    else requestAnimationFrame(process);
  }

  #processBatch() {
    this.#isScheduled = false;
    const deadline = performance.now() + BUDGET_MS;
    const batches = new Map();
    while (this.#processed < this.#batch.length && performance.now() < deadline) {
      const text = this.#batch[this.#processed];
      this.#batch[this.#processed] = null;
      this.#processed += 1;
      this.#dispatch(messageOf(text), batches);
    }
    for (const [subscription, messages] of batches) subscription.deliver(messages);
    if (this.#processed < this.#batch.length) return this.#schedule();
    this.#worker.postMessage({ pull: true });
    if (this.#hasOverflowed && !this.#left) {
      this.#hasOverflowed = false;
      this.open();
    }
  }

  #dispatch(message, batches) {
    for (const subscription of this.#recipients(message)) {
      if (!subscription.accepts(message)) continue;
      if (!batches.has(subscription)) batches.set(subscription, []);
      batches.get(subscription).push(message);
    }
  }

  #recipients(message) {
    if (message.topic !== undefined) {
      const found = this.#subscriptions.get(message.topic);
      return found ? [found] : [];
    }
    return [...this.#subscriptions.values()].filter((one) => one.requestId === message.request_id);
  }
}

/** A server's message together with its text: parsing would change parts of it, such as numbers in payloads. */
function messageOf(text) {
  try {
    return Object.assign(JSON.parse(text), { text });
  } catch (error) {
    console.warn("a message is not JSON:", error.message);
    return { type: "broken" };
  }
}

/** A position in one topic that follows it. */
class Subscription {
  #connection;
  #wanted;
  #onMessages;
  #isAnswered = false;
  #isClosed = false;
  #clientId;
  requestId = "";
  next = null;
  epoch = null;

  constructor(connection, topic, wanted, onMessages) {
    this.#connection = connection;
    this.topic = topic;
    this.#wanted = wanted;
    this.#onMessages = onMessages;
    this.#clientId = `page-${PAGE}-${connection.nextRequestId()}`;
  }

  /** Subscribe on the present connection: at first as wanted, later from the next offset. */
  request() {
    if (this.#isClosed) return;
    this.requestId = this.#connection.nextRequestId();
    this.#isAnswered = false;
    const { last_n, from, since, epoch, ...rest } = this.#wanted;
    const place = this.next === null ? { last_n, from, since, epoch } : { from: this.next, epoch: this.epoch };
    const { topic, requestId: request_id } = this;
    this.#connection.send({ type: "subscribe", topic, client_id: this.#clientId, request_id, ...rest, ...place });
  }

  /** Called when the connection is lost; its queued messages are still processed, so the next offset may grow. */
  onDisconnect() {
    this.requestId = "";
  }

  /** Whether a message belongs to this subscription; advances the next offset. */
  accepts(message) {
    if (this.#isClosed) return false;
    if (message.type === "ack") return message.request_id === this.requestId && this.#place(message);
    if (message.type === "error" && message.request_id) return message.request_id === this.requestId;
    // Before the ack a message belongs to a subscription that this one has replaced.
    if (!this.#isAnswered) return false;
    if (message.type !== "event") return message.client_id === undefined || message.client_id === this.#clientId;
    if (this.next !== null && message.offset < this.next) return false;
    this.next = message.offset + 1;
    return true;
  }

  #place(ack) {
    this.#isAnswered = true;
    if (ack.offset === undefined) return true;
    // A topic that was created again starts at 0; one that was restored may end before our offset.
    if (this.epoch !== ack.epoch || this.next === null || ack.offset < this.next) this.next = ack.offset;
    this.epoch = ack.epoch;
    return true;
  }

  deliver(messages) {
    if (!this.#isClosed) this.#onMessages(messages, this);
  }

  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#connection.drop(this);
    this.#connection.send({ type: "unsubscribe", topic: this.topic, client_id: this.#clientId });
  }
}
