// The WebSocket, in a thread of its own: thousands of messages a second would otherwise block the page. The page pulls
// one batch at a time.

const BATCH_MESSAGES = 1000;
const BATCH_CHARS = 2_000_000;
const QUEUE_CHARS_MAX = 48_000_000;

let socket = null;
let queue = [];
let sent = 0;
let queuedChars = 0;
let isRequested = false; // the page waits for a batch

onmessage = ({ data }) => {
  if (data.open) open(data.open);
  else if (data.send) socket?.readyState === WebSocket.OPEN && socket.send(data.send);
  else if (data.close) disconnect();
  else if (data.pull) {
    isRequested = true;
    sendBatch();
  }
};

function open(url) {
  disconnect();
  // Unsent messages of the last connection are repeated on this one.
  queue = [];
  sent = queuedChars = 0;
  const opened = new WebSocket(url);
  socket = opened;
  opened.onopen = () => opened === socket && postMessage({ opened: true });
  opened.onclose = () => {
    if (opened !== socket) return;
    socket = null;
    postMessage({ closed: true });
  };
  opened.onmessage = (event) => opened === socket && enqueue(event.data);
}

function disconnect() {
  const closing = socket;
  socket = null;
  closing?.close();
}

/** A browser cannot slow the server down: beyond the limit the socket is closed, and the page resumes later. */
function enqueue(text) {
  queue.push(text);
  queuedChars += text.length;
  if (queuedChars > QUEUE_CHARS_MAX) {
    disconnect();
    postMessage({ overflowed: true, left: queue.length - sent });
  }
  if (isRequested) sendBatch();
}

function sendBatch() {
  if (sent === queue.length) return;
  const batch = [];
  let chars = 0;
  while (sent < queue.length && batch.length < BATCH_MESSAGES && chars < BATCH_CHARS) {
    const text = queue[sent];
    queue[sent] = null;
    sent += 1;
    chars += text.length;
    batch.push(text);
  }
  queuedChars -= chars;
  if (sent === queue.length) {
    queue = [];
    sent = 0;
  }
  isRequested = false;
  postMessage({ batch, left: queue.length - sent });
}
