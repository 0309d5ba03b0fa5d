// Recalling earlier code with the arrow keys. The history is read from the log, so every browser has the same.

export class InputHistory {
  #codes;
  #back = 0; // the number of steps back; 0 is the current draft
  #draft = "";

  constructor(codes) {
    this.#codes = codes;
  }

  reset() {
    this.#back = 0;
    this.#draft = "";
  }

  /** Move by a step if the cursor is on the first (up) or last (down) line; return whether it moved. */
  move(input, step) {
    const { value, selectionStart, selectionEnd } = input;
    if (selectionStart !== selectionEnd) return false;
    if (step < 0 && value.slice(0, selectionStart).includes("\n")) return false;
    if (step > 0 && value.slice(selectionStart).includes("\n")) return false;
    const codes = distinct(this.#codes());
    const back = this.#back - step;
    if (back < 0 || back > codes.length) return false;
    if (this.#back === 0) this.#draft = value;
    this.#back = back;
    input.value = back === 0 ? this.#draft : codes[codes.length - back];
    input.setSelectionRange(input.value.length, input.value.length);
    return true;
  }
}

/** Without the same code twice in a row. */
const distinct = (codes) => codes.filter((code, index) => code !== codes[index - 1]);
