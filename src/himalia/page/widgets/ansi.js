// Escape sequences of terminals: colours and weights of text, and movements of the cursor.

const SEQUENCE = /\x1b(?:\[([0-9;:?]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])/y;
const PLAIN = Object.freeze({ fg: null, bg: null, bold: false, dim: false, italic: false, underline: false, inverse: false });

export { PLAIN };

/** The next sequence at `index`, as `{length, code, numbers}`; null if what is there is not one (yet). */
export function sequenceAt(text, index) {
  SEQUENCE.lastIndex = index;
  const found = SEQUENCE.exec(text);
  if (!found) return null;
  const numbers = (found[1] ?? "").split(/[;:]/).map((part) => Number.parseInt(part, 10) || 0);
  return { length: found[0].length, code: found[2] ?? "", numbers };
}

/** The style after `ESC [ numbers m`. */
export function styled(style, numbers) {
  let next = { ...style };
  for (let index = 0; index < numbers.length; index += 1) {
    const number = numbers[index];
    if (number === 38 || number === 48) {
      const [colour, used] = extended(numbers.slice(index + 1));
      if (colour !== null) next[number === 38 ? "fg" : "bg"] = colour;
      index += used;
    } else {
      next = simple(next, number);
    }
  }
  return next;
}

function simple(style, number) {
  if (number === 0) return { ...PLAIN };
  if (number === 1) return { ...style, bold: true };
  if (number === 2) return { ...style, dim: true };
  if (number === 3) return { ...style, italic: true };
  if (number === 4) return { ...style, underline: true };
  if (number === 7) return { ...style, inverse: true };
  if (number === 22) return { ...style, bold: false, dim: false };
  if (number === 23) return { ...style, italic: false };
  if (number === 24) return { ...style, underline: false };
  if (number === 27) return { ...style, inverse: false };
  if (number >= 30 && number <= 37) return { ...style, fg: number - 30 };
  if (number === 39) return { ...style, fg: null };
  if (number >= 40 && number <= 47) return { ...style, bg: number - 40 };
  if (number === 49) return { ...style, bg: null };
  if (number >= 90 && number <= 97) return { ...style, fg: number - 82 };
  if (number >= 100 && number <= 107) return { ...style, bg: number - 92 };
  return style;
}

/** What follows 38 or 48: a colour (0 to 15, or as CSS has it) and how many numbers told it. */
function extended([kind, ...rest]) {
  if (kind === 5) return [ofPalette(rest[0] ?? 0), 2];
  if (kind === 2) return [`rgb(${rest.slice(0, 3).map((one) => Math.min(one ?? 0, 255)).join(",")})`, 4];
  return [null, 0];
}

function ofPalette(number) {
  if (number < 16) return number;
  if (number >= 232) {
    const grey = 8 + (Math.min(number, 255) - 232) * 10;
    return `rgb(${grey},${grey},${grey})`;
  }
  const level = (step) => (step ? 55 + step * 40 : 0);
  const at = number - 16;
  return `rgb(${level(Math.floor(at / 36))},${level(Math.floor(at / 6) % 6)},${level(at % 6)})`;
}

/** Give an element a style: the sixteen colours by class, so that both themes can read them; others as they are. */
export function paint(element, style) {
  const { fg, bg } = style.inverse ? { fg: style.bg ?? "bg", bg: style.fg ?? "fg" } : style;
  const names = ["bold", "dim", "italic", "underline"].filter((name) => style[name]).map((name) => `t-${name}`);
  for (const [colour, kind] of [[fg, "f"], [bg, "b"]]) {
    if (colour === null) continue;
    if (typeof colour === "number" || colour.length === 2) names.push(`t-${kind}-${colour}`);
    else element.style[kind === "f" ? "color" : "backgroundColor"] = colour;
  }
  element.className = names.join(" ");
}

export const isPlain = (style) => style.fg === null && style.bg === null && !style.bold && !style.dim
  && !style.italic && !style.underline && !style.inverse;
