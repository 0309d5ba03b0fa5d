// The WebSocket, in a thread of its own: thousands of messages a second would otherwise keep the page from answering
// whoever clicks. The page pulls, one batch at a time, and so decides how much it takes in.

const BATCH_MESSAGES = 1000;
const BATCH_CHARS = 2_000_000;
const QUEUE_CHARS_MAX = 48_000_000;

let socket = null;
let queue = [];
let taken = 0;
let queuedChars = 0;
let isPulled = false; // the page waits for a batch

onmessage = ({ data }) => {
  if (data.open) open(data.open);
  else if (data.send) socket?.readyState === WebSocket.OPEN && socket.send(data.send);
  else if (data.close) hangUp();
  else if (data.pull) {
    isPulled = true;
    give();
  }
};

function open(url) {
  hangUp();
  // What is left of the last connection comes again on this one.
  queue = [];
  taken = queuedChars = 0;
  const opened = new WebSocket(url);
  socket = opened;
  opened.onopen = () => opened === socket && postMessage({ opened: true });
  opened.onclose = () => {
    if (opened !== socket) return;
    socket = null;
    postMessage({ closed: true });
  };
  opened.onmessage = (event) => opened === socket && take(event.data);
}

function hangUp() {
  const closing = socket;
  socket = null;
  closing?.close();
}

/** A server cannot be made to wait by a browser: beyond the limit we hang up, and come back where we were. */
function take(text) {
  queue.push(text);
  queuedChars += text.length;
  if (queuedChars > QUEUE_CHARS_MAX) {
    hangUp();
    postMessage({ overflowed: true, left: queue.length - taken });
  }
  if (isPulled) give();
}

function give() {
  if (taken === queue.length) return;
  const batch = [];
  let chars = 0;
  while (taken < queue.length && batch.length < BATCH_MESSAGES && chars < BATCH_CHARS) {
    const text = queue[taken];
    queue[taken] = null;
    taken += 1;
    chars += text.length;
    batch.push(text);
  }
  queuedChars -= chars;
  if (taken === queue.length) {
    queue = [];
    taken = 0;
  }
  isPulled = false;
  postMessage({ batch, left: queue.length - taken });
}
