// REST, as the protocol describes it. The cookie that the server set says who we are; the page never sees the key.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function call(method, path, { params, body, signal } = {}) {
  const query = new URLSearchParams(Object.entries(params ?? {}).filter(([, value]) => value !== "" && value != null));
  const address = query.size ? `${path}?${query}` : path;
  const options = { method, signal, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
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
export const post = async (path, body, signal) => answer(await call("POST", path, { body, signal }));
export const remove = async (path) => answer(await call("DELETE", path));

/** Health answers also when it is bad (503), and to strangers with little more than its status. */
export async function health() {
  const response = await call("GET", "/health");
  const found = await response.json().catch(() => null);
  if (!found?.status) throw new ApiError(response.status, "UNAVAILABLE", "the server does not say how it is");
  return found;
}

export async function text(path) {
  const response = await call("GET", path);
  return response.ok ? response.text() : answer(response);
}

/** Exchange a token for the server's cookie, which no script can read. */
export async function signIn(token) {
  const response = await call("GET", "/", { params: { token } });
  if (!response.ok) await answer(response);
}

export const topicPath = (name, rest = "") => `/topics/${encodeURIComponent(name)}${rest}`;
export const kernelPath = (id, rest = "") => `/api/kernels/${encodeURIComponent(id)}${rest}`;
