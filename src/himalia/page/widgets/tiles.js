// A figure with its name and a note.

import { h, setText } from "./elements.js";

export class Tile {
  #value = h("p", { class: "tile-value" }, "–");
  #note = h("p", { class: "tile-note" });
  #spark;

  constructor(name, { spark = null } = {}) {
    this.#spark = spark;
    this.element = h("div", { class: "tile card" }, h("h2", { class: "tile-name" }, name), this.#value, this.#note, spark?.element ?? "");
  }

  /** `points` are all values of the line, or one more of them. */
  show(value, note = "", points = null) {
    setText(this.#value, value);
    setText(this.#note, note);
    if (Array.isArray(points)) this.#spark?.show(points);
    else if (points !== null) this.#spark?.push(points);
  }
}
