// A stream as a terminal shows it: a carriage return goes back to the beginning of the line, so that progress bars
// change in place; escape sequences colour, and move up and down. Keeps the newest lines.

import { PLAIN, isPlain, paint, sequenceAt, styled } from "./ansi.js";
import { h } from "./elements.js";

const LINES_MAX = 10_000;
const LINE_CHARS_MAX = 20_000;
const PENDING_MAX = 64;
const UP_MAX = 1000;

/** A line is a list of pieces `{text, style}`. `first` is the number of the oldest line that is kept. */
export class Terminal {
  #style = PLAIN;
  #row = 0;
  #column = 0;
  #pending = ""; // the beginning of an escape sequence whose end has not come yet
  lines = [[]];
  first = 0;
  dirtyFrom = 0; // the first line that has changed since somebody looked
  chars = 0;

  get end() {
    return this.first + this.lines.length;
  }

  write(text) {
    this.chars += text.length;
    const all = this.#pending + text;
    this.#pending = "";
    let index = 0;
    while (index < all.length) {
      const start = index;
      while (index < all.length && !isControl(all.charCodeAt(index))) index += 1;
      if (index > start) this.#put(all.slice(start, index));
      if (index < all.length) index = this.#control(all, index);
    }
    this.#forget();
  }

  #control(text, index) {
    switch (text[index]) {
      case "\n":
        this.#row += 1;
        this.#column = 0;
        if (this.#row === this.lines.length) this.lines.push([]);
        this.#touch();
        return index + 1;
      case "\r":
        this.#column = 0;
        return index + 1;
      case "\b":
        this.#column = Math.max(this.#column - 1, 0);
        return index + 1;
      case "\t":
        this.#put(" ".repeat(8 - (this.#column % 8)));
        return index + 1;
      case "\x1b":
        return this.#escape(text, index);
      default:
        return index + 1;
    }
  }

  #escape(text, index) {
    const found = sequenceAt(text, index);
    if (!found) {
      if (text.length - index < PENDING_MAX) {
        this.#pending = text.slice(index);
        return text.length;
      }
      return index + 1;
    }
    const [number] = found.numbers;
    if (found.code === "m") this.#style = styled(this.#style, found.numbers);
    else if (found.code === "K") this.#erase(number);
    else if (found.code === "A") this.#row = Math.max(this.#row - Math.min(number || 1, UP_MAX), 0);
    else if (found.code === "B") this.#row = Math.min(this.#row + (number || 1), this.lines.length - 1);
    else if (found.code === "C") this.#column += Math.min(number || 1, UP_MAX);
    else if (found.code === "D") this.#column = Math.max(this.#column - (number || 1), 0);
    else if (found.code === "G") this.#column = Math.max((number || 1) - 1, 0);
    return index + found.length;
  }

  #put(text) {
    const room = LINE_CHARS_MAX - this.#column;
    const fits = text.length > room ? text.slice(0, Math.max(room, 0)) : text;
    if (fits) this.lines[this.#row] = overwritten(this.lines[this.#row], this.#column, fits, this.#style);
    this.#column += fits.length;
    this.#touch();
  }

  #erase(kind) {
    const line = this.lines[this.#row];
    if (kind === 2) this.lines[this.#row] = [];
    else if (kind === 1) this.lines[this.#row] = overwritten(line, 0, " ".repeat(this.#column), PLAIN);
    else this.lines[this.#row] = cut(line, 0, this.#column);
    this.#touch();
  }

  #touch() {
    this.dirtyFrom = Math.min(this.dirtyFrom, this.first + this.#row);
  }

  #forget() {
    const extra = this.lines.length - LINES_MAX;
    if (extra <= 0) return;
    this.lines.splice(0, extra);
    this.first += extra;
    this.#row = Math.max(this.#row - extra, 0);
  }

  /** The kept text, without its colours. */
  text() {
    return this.lines.map((line) => line.map((piece) => piece.text).join("")).join("\n");
  }
}

function isControl(code) {
  return code < 32 || code === 127;
}

const lengthOf = (line) => line.reduce((sum, piece) => sum + piece.text.length, 0);

/** A line in which `text` overwrites what was at `column`. */
function overwritten(line, column, text, style) {
  const length = lengthOf(line);
  const last = line.at(-1);
  if (column === length) {
    if (last && last.style === style) return [...line.slice(0, -1), { text: last.text + text, style }];
    return [...line, { text, style }];
  }
  if (column > length) return [...line, { text: " ".repeat(column - length), style: PLAIN }, { text, style }];
  return [...cut(line, 0, column), { text, style }, ...cut(line, column + text.length, length)];
}

/** The pieces between two columns. */
function cut(line, from, to) {
  const kept = [];
  let at = 0;
  for (const { text, style } of line) {
    const piece = text.slice(Math.max(from - at, 0), Math.max(to - at, 0));
    if (piece) kept.push({ text: piece, style });
    at += text.length;
  }
  return kept;
}

/** A line as an element. */
export function lineElement(line) {
  const element = h("div", { class: "t-line" });
  for (const { text, style } of line) {
    if (isPlain(style)) {
      element.append(text);
      continue;
    }
    const piece = h("span", {}, text);
    paint(piece, style);
    element.append(piece);
  }
  if (!line.length) element.append("\u200b");
  return element;
}

/** A whole text with escape sequences, such as a traceback. */
export function terminalElement(text, kind = "") {
  const terminal = new Terminal();
  terminal.write(text);
  return h("div", { class: `terminal ${kind}` }, ...terminal.lines.map(lineElement));
}
