// The outputs of a request as elements. Text and images are shown in the page, everything active in a frame.

import { copyButton } from "./clipboard.js";
import { h } from "./elements.js";
import { bytes, count, plural } from "./format.js";
import { OutputFrame, PlotFrame } from "./frames.js";
import { pretty } from "../live/json_text.js";
import { WIDGET, textOf } from "../live/kernel_session.js";
import { lineElement, terminalElement } from "./terminal.js";
import { WidgetView } from "./widget_view.js";

const LINES_SHOWN = 500;
const TEXT_SHOWN = 100_000;
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const PLOTLY = "application/vnd.plotly.v1+json";
// The first of these that an output has is shown.
const FORMS = [PLOTLY, WIDGET, "text/html", "image/svg+xml", ...IMAGES, "text/latex", "text/markdown", "application/json", "text/plain"];

/** The view of an output: `element`, `update()` when the output changed, `close()` when it is removed. */
export function viewOf(output, cell) {
  if (output.kind === "stream") return new StreamView(output, cell);
  if (output.kind === "error") return new ErrorView(output);
  return new DisplayView(output);
}

class StreamView {
  #terminal;
  #lines;
  #from = 0;
  #limit = LINES_SHOWN;
  #earlier;
  #gone;

  constructor(output, cell) {
    this.output = output;
    this.#terminal = output.terminal;
    this.#terminal.dirtyFrom = this.#terminal.first;
    this.#from = this.#terminal.first;
    this.#lines = h("div", { class: `terminal ${output.name}`, tabindex: "0", role: "group", "aria-label": output.name });
    this.#earlier = h("button", { class: "button quiet more", type: "button", hidden: true, onclick: () => this.#showEarlier() });
    this.#gone = h("p", { class: "note", hidden: true });
    this.element = h("div", { class: "output" }, this.#gone, this.#earlier, this.#lines);
    this.topic = cell?.topic;
    this.update();
  }

  update() {
    const terminal = this.#terminal;
    const isAtEnd = this.#lines.scrollHeight - this.#lines.scrollTop - this.#lines.clientHeight < 40;
    const end = terminal.end - (terminal.lines.at(-1).length ? 0 : 1);
    const from = Math.max(terminal.first, end - this.#limit);
    while (this.#from < from && this.#lines.firstChild) {
      this.#lines.firstChild.remove();
      this.#from += 1;
    }
    if (!this.#lines.firstChild) this.#from = from;
    const dirty = Math.max(terminal.dirtyFrom, this.#from);
    while (this.#lines.children.length > dirty - this.#from) this.#lines.lastChild.remove();
    const fresh = document.createDocumentFragment();
    for (let number = this.#from + this.#lines.children.length; number < end; number += 1) {
      fresh.append(lineElement(terminal.lines[number - terminal.first]));
    }
    this.#lines.append(fresh);
    terminal.dirtyFrom = Infinity;
    this.#showNotes(from);
    if (isAtEnd) this.#lines.scrollTop = this.#lines.scrollHeight;
  }

  #showNotes(from) {
    const hidden = from - this.#terminal.first;
    this.#earlier.hidden = hidden <= 0;
    this.#earlier.textContent = `Show ${plural(hidden, "earlier line")}`;
    this.#gone.hidden = this.#terminal.first === 0;
    this.#gone.textContent = `${plural(this.#terminal.first, "older line")} are only in the log, in the kernel's topic.`;
  }

  #showEarlier() {
    this.#limit = Infinity;
    this.#lines.replaceChildren();
    this.#terminal.dirtyFrom = this.#terminal.first;
    this.#from = this.#terminal.first;
    this.update();
  }

  /** Called when it is in the page: only then can it be scrolled to its end. */
  placed() {
    this.#lines.scrollTop = this.#lines.scrollHeight;
  }

  close() {}
}

class ErrorView {
  constructor(output) {
    this.output = output;
    const name = output.ename || "Error";
    this.element = h("details", { class: "output error-output" },
      h("summary", {}, h("strong", {}, name), output.evalue ? `: ${output.evalue.slice(0, 2000)}` : ""),
      terminalElement(output.traceback.join("\n").slice(-TEXT_SHOWN), "traceback"),
      copyButton(() => output.traceback.join("\n").replace(/\x1b\[[0-9;]*m/g, ""), "Copy traceback"));
  }

  update() {}
  close() {}
}

class DisplayView {
  #body = h("div", { class: "display" });
  #shown = null; // the frame in it, if there is one
  #form = null;
  #version = -1;
  #isText = false;
  #toggle;

  constructor(output) {
    this.output = output;
    this.#toggle = h("button", { class: "button quiet tiny", type: "button", hidden: true, onclick: () => this.#switch() }, "As text");
    const number = output.count !== null && h("span", { class: "prompt out" }, `Out [${count(output.count)}]`);
    this.element = h("div", { class: "output display-output" }, number, this.#body, this.#toggle);
    this.update();
  }

  update() {
    if (this.#version === this.output.version) return;
    this.#version = this.output.version;
    this.#render();
  }

  close() {
    this.#shown?.close();
  }

  #switch() {
    this.#isText = !this.#isText;
    this.#toggle.textContent = this.#isText ? "As shown" : "As text";
    this.#form = null;
    this.#render();
  }

  #render() {
    const { data } = this.output;
    const rich = FORMS.find((form) => form in data) ?? Object.keys(data)[0];
    const form = this.#isText ? "text/plain" : rich;
    this.#toggle.hidden = rich === "text/plain" || !("text/plain" in data) || rich === WIDGET;
    if (form === this.#form && this.#shown instanceof OutputFrame) return this.#shown.update(textOf(data[form]));
    if (form === this.#form && this.#shown instanceof WidgetView) return this.#shown.update();
    this.#shown?.close();
    this.#shown = null;
    this.#form = form;
    this.#body.replaceChildren(...[this.#make(form, data)].flat().filter(Boolean));
  }

  #make(form, data) {
    if (form === undefined) return h("p", { class: "note" }, "An empty output");
    if (form === PLOTLY) return this.#plot(data);
    if (form === WIDGET) return this.#widget(data);
    if (form === "text/html" || form === "image/svg+xml") return this.#frame(textOf(data[form]), form);
    if (IMAGES.includes(form)) return imageOf(form, textOf(data[form]), textOf(data["text/plain"]));
    if (form in this.output.json) return textBlock(pretty(this.output.json[form]), form === "application/json" ? "" : form);
    return textBlock(textOf(data[form]), form === "text/plain" || form === "text/latex" || form === "text/markdown" ? "" : form);
  }

  #widget(data) {
    const { widgets } = this.output;
    const id = data[WIDGET]?.model_id;
    if (!widgets?.kindOf(id)) return [h("p", { class: "note" }, "A widget, as text:"), textBlock(textOf(data["text/plain"]) || "(no text form)")];
    this.#shown = new WidgetView(widgets, id);
    return this.#shown.element;
  }

  #frame(html, form) {
    this.#shown = new OutputFrame(html, form === "text/html" ? "HTML output" : "SVG output");
    const hasScripts = /<script|\son\w+\s*=|javascript:/i.test(html);
    return [this.#shown.element, hasScripts && h("p", { class: "note" }, "Scripts in outputs do not run here.")];
  }

  #plot(data) {
    const { data: traces, layout } = data[PLOTLY] ?? {};
    const figure = { data: Array.isArray(traces) ? traces : [], layout: typeof layout === "object" && layout ? layout : {} };
    const onMissing = () => this.#body.replaceChildren(textBlock(textOf(data["text/plain"])), h("p", { class: "note" }, "The server has no Plotly: pip install 'himalia[page]'."));
    this.#shown = new PlotFrame("Plot", { onMissing, figures: () => [{ ...figure, layout: { ...figure.layout, autosize: true, width: undefined, height: 300 } }] });
    return this.#shown.element;
  }
}

function imageOf(form, encoded, description) {
  const clean = encoded.replace(/\s+/g, "");
  if (!/^[A-Za-z0-9+/]*=*$/.test(clean)) return h("p", { class: "note" }, `A ${form} that is not base64`);
  return h("img", { class: "image", src: `data:${form};base64,${clean}`, alt: description.slice(0, 200) || "Image output" });
}

/** Text with its colours; of a long one only the beginning, and a button for the rest. */
function textBlock(text, form = "") {
  const place = h("div");
  const show = (limit) => place.replaceChildren(terminalElement(text.slice(0, limit)), ...(text.length > limit
    ? [h("button", { class: "button quiet", type: "button", onclick: () => show(Infinity) }, `Show all ${bytes(text.length)}`)] : []));
  show(TEXT_SHOWN);
  return form ? h("div", {}, h("p", { class: "note" }, form), place) : place;
}
