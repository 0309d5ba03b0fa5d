// Addresses within the page: `#/topics/orders?from=5` is the parts ["topics", "orders"] and the parameters.

export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { parts: path.split("/").filter(Boolean).map(decoded), params: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // somebody typed a lone %
  }
}

export const navigate = (address) => {
  location.hash = address;
};
