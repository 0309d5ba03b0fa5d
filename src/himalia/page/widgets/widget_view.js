// A widget as elements: progress bars, text, and rows and columns of them. HTML with tags in it is framed.

import { h } from "./elements.js";
import { OutputFrame } from "./frames.js";

const PARTS_MAX = 200; // of one displayed widget: models may refer to each other in any way
const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'", nbsp: "\u00a0" };
const CODE_POINT_MAX = 0x10ffff;

/** The view of a model and its parts: `element`, `update()` when one of them changed, `close()`. */
export class WidgetView {
  #widgets;
  #id;
  #room;
  #kind = null;
  #part = null;

  constructor(widgets, id, room = { left: PARTS_MAX }) {
    this.#widgets = widgets;
    this.#id = id;
    this.#room = room;
    room.left -= 1;
    this.element = h("div", { class: "widget" });
    this.update();
  }

  update() {
    const kind = this.#widgets.kindOf(this.#id);
    if (kind !== this.#kind || !this.#part) {
      this.#part?.close?.();
      this.#kind = kind;
      this.#part = this.#make(kind);
      this.element.replaceChildren(this.#part.element);
    }
    this.element.hidden = this.#widgets.isHidden(this.#id);
    this.#part.update(this.#widgets.stateOf(this.#id));
  }

  close() {
    this.#room.left += 1;
    this.#part?.close?.();
  }

  #make(kind) {
    if (kind === "progress") return new Progress();
    if (kind === "html" || kind === "text") return new Text(kind === "html");
    if (kind === "row" || kind === "column") return new Box(kind, this.#widgets, this.#id, this.#room);
    return { element: h("span", { class: "note" }, `[${this.#widgets.nameOf(this.#id) || "widget"}]`), update() {} };
  }
}

class Progress {
  #label = h("span", { class: "widget-label" });
  #done = h("div", { class: "bar-done" });
  #bar = h("div", { class: "progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, this.#done);
  element = h("div", { class: "widget-row" }, this.#label, this.#bar);

  update({ value, min, max, description, bar_style: style }) {
    const [least, most, at] = [min, max, value].map((one) => (Number.isFinite(one) ? one : 0));
    const share = most > least ? Math.min(Math.max((at - least) / (most - least), 0), 1) : 0;
    this.#done.style.width = `${share * 100}%`;
    this.#bar.setAttribute("aria-valuenow", Math.round(share * 100));
    this.#bar.dataset.style = ["success", "info", "warning", "danger"].includes(style) ? style : "";
    this.#label.textContent = plainText(description);
    this.#bar.setAttribute("aria-label", this.#label.textContent || "Progress");
  }
}

class Text {
  #isHtml;
  #label = h("span", { class: "widget-label" });
  #text = h("span", { class: "widget-text" });
  #frame = null;
  element = h("div", { class: "widget-row" }, this.#label, this.#text);

  constructor(isHtml) {
    this.#isHtml = isHtml;
  }

  update({ value, description }) {
    const text = typeof value === "string" ? value : "";
    this.#label.textContent = plainText(description);
    if (this.#isHtml && hasTags(text)) return this.#showFramed(text);
    this.close();
    this.#text.textContent = this.#isHtml ? plainText(text) : text;
  }

  #showFramed(html) {
    if (this.#frame) return this.#frame.update(html);
    this.#frame = new OutputFrame(html, "HTML widget");
    this.#text.replaceChildren(this.#frame.element);
  }

  close() {
    this.#frame?.close();
    this.#frame = null;
  }
}

class Box {
  #widgets;
  #id;
  #room;
  #views = new Map();

  constructor(kind, widgets, id, room) {
    this.#widgets = widgets;
    this.#id = id;
    this.#room = room;
    this.element = h("div", { class: `widget-${kind}` });
  }

  update() {
    const wanted = [...new Set(this.#widgets.childrenOf(this.#id).slice(0, PARTS_MAX))];
    for (const [id, view] of this.#views) {
      if (wanted.includes(id)) continue;
      view.close();
      this.#views.delete(id);
    }
    for (const id of wanted) {
      if (this.#views.has(id)) this.#views.get(id).update();
      else if (this.#room.left > 0) this.#views.set(id, new WidgetView(this.#widgets, id, this.#room));
    }
    const elements = wanted.filter((id) => this.#views.has(id)).map((id) => this.#views.get(id).element);
    if (elements.some((one, index) => one !== this.element.children[index]) || elements.length !== this.element.children.length) {
      this.element.replaceChildren(...elements);
    }
  }

  close() {
    for (const view of this.#views.values()) view.close();
  }
}

const hasTags = (html) => /<[a-z/!]/i.test(html);

/** The text of HTML, without its tags; it is not parsed. tqdm pads with figure spaces, which plain ones do as well here. */
function plainText(html) {
  if (typeof html !== "string") return "";
  return html.replace(/<[^>]*>/g, "").replaceAll("\u2007", " ").replace(/&(#x?[0-9a-f]+|[a-z]+);/gi, (all, name) => {
    if (!name.startsWith("#")) return ENTITIES[name.toLowerCase()] ?? all;
    const code = /^#x/i.test(name) ? Number.parseInt(name.slice(2), 16) : Number.parseInt(name.slice(1), 10);
    return code <= CODE_POINT_MAX ? String.fromCodePoint(code) : all;
  });
}
