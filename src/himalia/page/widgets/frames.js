// Sandboxed frames for content of kernels. They have an opaque origin, so they reach nothing of this page or its server;
// they report little more than a height, which is used only within bounds.

import { h } from "./elements.js";
import { currentTheme, onTheme } from "./theme.js";

const HEIGHT_MAX = 480;
const HEIGHT_ALL_MAX = 20_000;
const HTML_MAX = 2_000_000;

/** A sandboxed frame, loaded when it scrolls into view. `onMessage(data)` gets the messages of its document. */
class Frame {
  #listeners = new AbortController();
  #observer;

  constructor(address, title, onMessage) {
    this.element = h("iframe", { class: "frame", title, sandbox: "allow-scripts", referrerpolicy: "no-referrer" });
    addEventListener("message", (event) => {
      if (event.source === this.element.contentWindow && event.source && event.data) onMessage(event.data);
    }, { signal: this.#listeners.signal });
    this.#observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      this.#observer.disconnect();
      this.element.src = address;
    }, { rootMargin: "400px" });
    this.#observer.observe(this.element);
  }

  send(message) {
    this.element.contentWindow?.postMessage(message, "*");
  }

  close() {
    this.#listeners.abort();
    this.#observer.disconnect();
    this.element.remove();
  }
}

/** HTML or SVG of a kernel. */
export class OutputFrame {
  #frame;
  #html;
  #isReady = false;
  #height = 60;
  #isWhole = false;
  #more;
  #stopTheme;

  constructor(html, title) {
    this.#html = html;
    this.#frame = new Frame("/page/frame.html", title, (data) => this.#onMessage(data));
    this.#more = h("button", { class: "button quiet", type: "button", hidden: true, onclick: () => this.#showAll() }, "Show the whole output");
    this.element = h("div", { class: "framed" }, this.#frame.element, this.#more);
    this.#stopTheme = onTheme(() => this.#show());
  }

  update(html) {
    this.#html = html;
    this.#show();
  }

  close() {
    this.#stopTheme();
    this.#frame.close();
  }

  #onMessage(data) {
    if (data.ready) {
      this.#isReady = true;
      this.#show();
    } else if (Number.isFinite(data.height)) {
      this.#height = data.height;
      this.#resize();
    }
  }

  #show() {
    if (!this.#isReady) return;
    const isCut = this.#html.length > HTML_MAX && !this.#isWhole;
    this.#frame.send({ html: isCut ? this.#html.slice(0, HTML_MAX) : this.#html, theme: currentTheme() });
  }

  #showAll() {
    this.#isWhole = true;
    this.#show();
    this.#resize();
  }

  #resize() {
    const most = this.#isWhole ? HEIGHT_ALL_MAX : HEIGHT_MAX;
    const height = Math.min(Math.max(this.#height, 24), most);
    this.#frame.element.style.height = `${height}px`;
    this.#more.hidden = this.#isWhole || (this.#height <= HEIGHT_MAX && this.#html.length <= HTML_MAX);
  }
}

/** Figures for Plotly: a list of `{data, layout}`. `onMissing()` is called if the server has no Plotly. */
export class PlotFrame {
  #frame;
  #figures = null;
  #isReady = false;
  #stopTheme;

  constructor(title, { onMissing, figures }) {
    this.#figures = figures ?? null;
    this.#frame = new Frame("/page/plot.html", title, (data) => {
      if (data.ready) {
        this.#isReady = true;
        this.#draw();
      } else if (data.missing) onMissing();
      else if (data.drawn !== undefined) this.element.dataset.drawn = data.drawn;
      else if (data.failed) console.warn("Plotly:", data.failed);
      else if (Number.isFinite(data.height)) this.#frame.element.style.height = `${Math.min(Math.max(data.height, 100), 3000)}px`;
    });
    this.element = this.#frame.element;
    this.#stopTheme = onTheme(() => this.#draw());
  }

  /** Draw figures, given as a function of the theme. */
  show(figures) {
    this.#figures = figures;
    this.#draw();
  }

  close() {
    this.#stopTheme();
    this.#frame.close();
  }

  #draw() {
    const theme = currentTheme();
    if (this.#isReady && this.#figures) this.#frame.send({ figures: this.#figures(theme), theme });
  }
}
