// REST, as the protocol describes it. A cookie that no script can read holds the session; the page keeps no key.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function call(method, path, { params, text, signal, headers } = {}) {
  const query = new URLSearchParams(Object.entries(params ?? {}).filter(([, value]) => value !== "" && value != null));
  const address = query.size ? `${path}?${query}` : path;
  const options = { method, signal, headers: { Accept: "application/json", ...headers } };
  if (text !== undefined) {
    options.body = text;
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "CONNECTION_FAILED", "the server does not answer");
  }
  return response;
}

async function answer(response) {
  if (response.ok) return response.status === 204 ? null : response.json();
  const body = await response.json().catch(() => null);
  const { code = String(response.status), message = response.statusText } = body?.error ?? {};
  if (response.status === 401) dispatchEvent(new CustomEvent("himalia:unauthorized"));
  throw new ApiError(response.status, code, message);
}

export const get = async (path, params, signal) => answer(await call("GET", path, { params, signal }));
export const post = (path, body) => postText(path, JSON.stringify(body));
/** Post JSON that is text already, as it is. */
export const postText = async (path, text) => answer(await call("POST", path, { text }));
export const remove = async (path) => answer(await call("DELETE", path));

/** Health answers also when it is bad (503), and to strangers with little more than its status. */
export async function health() {
  const response = await call("GET", "/health");
  const found = await response.json().catch(() => null);
  if (!found?.status) throw new ApiError(response.status, "UNAVAILABLE", "the server does not say how it is");
  return found;
}

/** The text of an answer; null if it is longer than this, which is then not read to its end. */
export async function textUpTo(path, params, signal, charsMax) {
  const reading = new AbortController();
  const response = await call("GET", path, { params, signal: AbortSignal.any([signal, reading.signal]) });
  if (!response.ok) return answer(response);
  const parts = [];
  let chars = 0;
  for await (const part of textsOf(response)) {
    parts.push(part);
    chars += part.length;
    if (chars > charsMax) {
      reading.abort();
      return null;
    }
  }
  return parts.join("");
}

async function* textsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}

export async function text(path) {
  const response = await call("GET", path);
  return response.ok ? response.text() : answer(response);
}

/** Who is signed in, and until when: `{caller, expires}`; 401 if nobody is. */
export const session = () => get("/session");

/** Exchange a key for a session. The key goes into a header, and nowhere else. */
export async function signIn(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) throw new ApiError(401, "UNAUTHORIZED", "a key is made of letters, digits and signs, without spaces");
  return answer(await call("POST", "/session", { headers: { Authorization: `Bearer ${key}` } }));
}

export const signOut = () => remove("/session");

export const topicPath = (name, rest = "") => `/topics/${encodeURIComponent(name)}${rest}`;
export const kernelPath = (id, rest = "") => `/api/kernels/${encodeURIComponent(id)}${rest}`;
