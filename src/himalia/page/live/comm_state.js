// The widgets of a kernel (ipywidgets, and tqdm.auto with it): displayed once, and then only changed by comm messages.
// Without elements; keeps the values that the page can draw.

const TARGET = "jupyter.widget";
const REFERENCE = "IPY_MODEL_";
const MODELS_MAX = 5000;
const CHARS_MAX = 16_000_000; // of all models; the oldest go first
const KEPT = new Set(["_model_name", "value", "min", "max", "description", "bar_style", "children", "layout", "display", "visibility"]);
const KINDS = {
  FloatProgressModel: "progress", IntProgressModel: "progress", HTMLModel: "html", HTMLMathModel: "html", LabelModel: "text",
  HBoxModel: "row", BoxModel: "row", VBoxModel: "column", GridBoxModel: "column",
};

export const referred = (value) => (typeof value === "string" && value.startsWith(REFERENCE) ? value.slice(REFERENCE.length) : "");

export class Widgets {
  #models = new Map();
  #chars = 0;

  /** Apply a comm message; returns the id of the model that it changed, or null. Never throws, whatever a kernel sends. */
  apply(type, content) {
    const id = content.comm_id;
    if (typeof id !== "string") return null;
    if (type === "comm_open" && content.target_name === TARGET) {
      this.#forget(id);
      this.#models.set(id, { state: {}, isClosed: false, parents: new Set(), chars: 0 });
    }
    const model = this.#models.get(id);
    if (!model) return null;
    if (type === "comm_close") model.isClosed = true;
    else if (!this.#update(id, model, content.data?.state)) return null;
    return id;
  }

  /** "progress", "html", "text", "row" or "column"; null for what cannot be drawn. */
  kindOf(id) {
    return KINDS[this.#models.get(id)?.state._model_name] ?? null;
  }

  nameOf(id) {
    return String(this.#models.get(id)?.state._model_name ?? "").replace(/Model$/, "");
  }

  stateOf(id) {
    return this.#models.get(id)?.state ?? {};
  }

  childrenOf(id) {
    const { children } = this.stateOf(id);
    return Array.isArray(children) ? children.map(referred).filter(Boolean) : [];
  }

  isHidden(id) {
    const model = this.#models.get(id);
    if (!model || model.isClosed) return true;
    const layout = this.stateOf(referred(model.state.layout));
    return layout.display === "none" || layout.visibility === "hidden";
  }

  /** A model, and every model that contains it. */
  around(id) {
    const found = new Set([id]);
    for (const one of found) {
      for (const parent of this.#models.get(one)?.parents ?? []) found.add(parent);
    }
    return found;
  }

  #update(id, model, state) {
    if (typeof state !== "object" || state === null) return false;
    for (const [key, value] of Object.entries(state)) if (KEPT.has(key)) model.state[key] = value;
    for (const part of [...this.childrenOf(id), referred(model.state.layout)]) this.#models.get(part)?.parents.add(id);
    const chars = JSON.stringify(model.state).length;
    this.#chars += chars - model.chars;
    model.chars = chars;
    while (this.#models.size > MODELS_MAX || (this.#chars > CHARS_MAX && this.#models.size)) this.#forget(this.#models.keys().next().value);
    return true;
  }

  #forget(id) {
    this.#chars -= this.#models.get(id)?.chars ?? 0;
    this.#models.delete(id);
  }
}
