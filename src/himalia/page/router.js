// Addresses within the page, and the sections that they lead to: `#/topics/orders?from=5` is the parts ["topics", "orders"] and the parameters.

export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { parts: path.split("/").filter(Boolean).map(decode), params: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone % in a typed address
  }
}

export const navigate = (address) => {
  location.hash = address;
};

/** The sections in the order in which their modules were imported; see sections.js. */
export const SECTIONS = [];

/**
 * Add a section `{name, title, key, view}`: the first part of its addresses, its name in the bar, the key that opens it after
 * g, and `view({connection, navigate, route})`, which returns `{element, close(), title}`, and `focus()` and `onKey(key)` if
 * it needs them.
 */
export function addSection(section) {
  SECTIONS.push(section);
}
