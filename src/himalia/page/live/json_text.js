// JSON as text. JSON.parse rounds numbers to doubles, drops repeated keys and moves some; here they stay as they were written.
// Nothing in this module throws: text that is not JSON is returned unchanged.

const SPACE = new Set([" ", "\t", "\n", "\r"]);
const MARKS = new Set(["{", "}", "[", "]", ",", ":"]);
const LITERALS = new Set(["true", "false", "null"]);
const INDENT_MAX = 40; // levels that are indented; deeper ones stay in that column

function pastSpace(text, at) {
  while (at < text.length && SPACE.has(text[at])) at += 1;
  return at;
}

/** The end of the string that begins at `at`. */
function pastString(text, at) {
  let end = at + 1;
  for (;;) {
    end = text.indexOf('"', end);
    if (end === -1) return text.length;
    let slashes = 0;
    while (text[end - 1 - slashes] === "\\") slashes += 1;
    end += 1;
    if (slashes % 2 === 0) return end;
  }
}

/** The end of the token that begins at `at`: a mark, a string, or anything up to the next of these. */
function pastToken(text, at) {
  if (text[at] === '"') return pastString(text, at);
  if (MARKS.has(text[at])) return at + 1;
  let end = at + 1;
  while (end < text.length && text[end] !== '"' && !MARKS.has(text[end]) && !SPACE.has(text[end])) end += 1;
  return end;
}

/** The end of the value that begins at `at`. */
function pastValue(text, at) {
  let depth = 0;
  while (at < text.length) {
    const mark = text[at];
    if (mark === "{" || mark === "[") depth += 1;
    else if (mark === "}" || mark === "]") depth -= 1;
    at = pastToken(text, at);
    if (depth <= 0) return at;
    at = pastSpace(text, at);
  }
  return at;
}

/** The text of a member's value; of several with this name the last, as JSON.parse has it. */
function memberOf(text, name) {
  let at = pastSpace(text, 0);
  if (text[at] !== "{") return undefined;
  let found;
  at = pastSpace(text, at + 1);
  while (text[at] === '"') {
    const keyEnd = pastString(text, at);
    const isIt = keyOf(text.slice(at, keyEnd)) === name;
    const start = pastSpace(text, pastSpace(text, keyEnd) + 1);
    const end = pastValue(text, start);
    if (isIt) found = text.slice(start, end);
    at = pastSpace(text, end);
    if (text[at] === ",") at = pastSpace(text, at + 1);
  }
  return found;
}

function keyOf(token) {
  try {
    return JSON.parse(token);
  } catch {
    return undefined;
  }
}

/** The text of the value at a path of names, as it stands in the document; undefined if there is none. */
export function textAt(text, ...path) {
  let found = text;
  for (const name of path) {
    found = memberOf(found, name);
    if (found === undefined) return undefined;
  }
  return found;
}

/** The texts of the items of the list at a path. */
export function itemsAt(text, ...path) {
  const list = textAt(text, ...path) ?? "";
  const found = [];
  let at = pastSpace(list, 1);
  while (at < list.length && list[at] !== "]") {
    const end = pastValue(list, at);
    found.push(list.slice(at, end));
    at = pastSpace(list, end);
    if (list[at] === ",") at = pastSpace(list, at + 1);
  }
  return found;
}

/** The document on one line, without the spaces between its tokens; about `length` characters of it. */
export function onOneLine(text, length) {
  const parts = [];
  let size = 0;
  for (let at = pastSpace(text, 0); at < text.length && size <= length;) {
    const end = pastToken(text, at);
    parts.push(text.slice(at, Math.min(end, at + length + 1)));
    size += end - at;
    at = pastSpace(text, end);
  }
  return parts.join("");
}

function kindOf(text, at, end) {
  if (text[at] === '"') return text[pastSpace(text, end)] === ":" ? "key" : "string";
  return LITERALS.has(text.slice(at, end)) ? "literal" : "number";
}

/**
 * The document indented, in pieces `{kind, text}`: "key", "string", "number" and "literal" as they are written, "mark" for
 * what is between them.
 */
export function* indented(text) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, INDENT_MAX))}`;
  for (let at = pastSpace(text, 0); at < text.length;) {
    const mark = text[at];
    const end = pastToken(text, at);
    const next = pastSpace(text, end);
    if (mark === "{" || mark === "[") {
      const isEmpty = text[next] === "}" || text[next] === "]";
      if (!isEmpty) depth += 1;
      yield { kind: "mark", text: isEmpty ? mark + text[next] : mark + line() };
      at = isEmpty ? pastSpace(text, next + 1) : next;
      continue;
    }
    if (mark === "}" || mark === "]") {
      depth = Math.max(depth - 1, 0);
      yield { kind: "mark", text: line() + mark };
    } else if (mark === ",") yield { kind: "mark", text: mark + line() };
    else if (mark === ":") yield { kind: "mark", text: ": " };
    else yield { kind: kindOf(text, at, end), text: text.slice(at, end) };
    at = next;
  }
}

/** The document indented, as one text. */
export function pretty(text) {
  let all = "";
  for (const piece of indented(text)) all += piece.text;
  return all;
}
