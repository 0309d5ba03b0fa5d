// The sections of the page, in the order of the bar. A new one is a module in views/ and a line here.
//
// The module exports `section = {name, title, key, view}`: the first part of its addresses, its name in the bar, the key
// that opens it after g, and `view({connection, navigate, route})`, which returns `{element, close(), title}`, and
// `focus()` and `onKey(key)` if it needs them.

const MODULES = [
  import("./views/topics.js"),
  import("./views/kernels.js"),
  import("./views/executions.js"),
  import("./views/pipeline.js"),
  import("./views/system.js"),
];

export const SECTIONS = (await Promise.all(MODULES)).map(({ section }) => section);
