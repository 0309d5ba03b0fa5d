// A line without axes: the last values, at a glance.

import { svg } from "./elements.js";

const WIDTH = 120;
const HEIGHT = 28;
const LENGTH_MIN = 12; // fewer values than this do not fill the width

export class Sparkline {
  #line = svg("polyline", { class: "spark-line" });
  #area = svg("polygon", { class: "spark-area" });
  #values = [];
  #length;

  constructor(length = 60) {
    this.#length = length;
    this.element = svg("svg", {
      class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
    }, this.#area, this.#line);
  }

  /** Draw these values instead of those before. */
  show(values) {
    this.#values = values.slice(-this.#length);
    this.#draw();
  }

  push(value) {
    this.#values.push(value);
    if (this.#values.length > this.#length) this.#values.shift();
    this.#draw();
  }

  #draw() {
    if (this.#values.length < 2) return;
    const top = Math.max(...this.#values, 1);
    const step = WIDTH / (Math.max(this.#values.length, LENGTH_MIN) - 1);
    const start = WIDTH - (this.#values.length - 1) * step;
    const points = this.#values.map(
      (value, index) => `${(start + index * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`,
    );
    this.#line.setAttribute("points", points.join(" "));
    this.#area.setAttribute("points", `${start.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  }
}
