// Calls of the REST API. A cookie that scripts cannot read holds the session; the page stores no key.

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
/** Post JSON text unchanged. */
export const postText = async (path, text) => answer(await call("POST", path, { text }));
export const remove = async (path) => answer(await call("DELETE", path));

/** The health of the server, also if it is unhealthy (503). Without a session it is little more than the status. */
export async function health() {
  const response = await call("GET", "/health");
  const found = await response.json().catch(() => null);
  if (!found?.status) throw new ApiError(response.status, "UNAVAILABLE", "the server does not report its health");
  return found;
}

/** The text of an answer; null if it is longer than `charsMax`, and then the rest is not read. */
export async function textUpTo(path, params, signal, charsMax) {
  const reader = new AbortController();
  const response = await call("GET", path, { params, signal: AbortSignal.any([signal, reader.signal]) });
  if (!response.ok) return answer(response);
  const parts = [];
  let chars = 0;
  for await (const part of textsOf(response)) {
    parts.push(part);
    chars += part.length;
    if (chars > charsMax) {
      reader.abort();
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

/** The session, `{caller, expires}`; 401 if there is none. */
export const session = () => get("/session");

/** Exchange a key for a session. The key is sent in a header only. */
export async function signIn(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) throw new ApiError(401, "UNAUTHORIZED", "a key consists of letters, digits and signs, without spaces");
  return answer(await call("POST", "/session", { headers: { Authorization: `Bearer ${key}` } }));
}

export const signOut = () => remove("/session");

export const topicPath = (name, rest = "") => `/topics/${encodeURIComponent(name)}${rest}`;
export const kernelPath = (id, rest = "") => `/api/kernels/${encodeURIComponent(id)}${rest}`;
