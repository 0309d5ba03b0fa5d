// Creating elements. Text is always text: nothing in this page parses HTML, and links stay within the page's origin.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Children that are strings become text; null and false are left out; `on…` takes a function. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) return element.addEventListener(name.slice(2), value);
  if (name === "href" && !/^(#|\/(?!\/))/.test(value)) throw new Error(`a link leads out of the page: ${value}`);
  if (name === "value") element.value = value;
  else if (name in element && typeof value === "boolean") element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

/** The same for SVG; it takes no functions. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set a text only if it changed: most polled values stay the same. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** What an empty view shows: a title, and what to do. */
export function emptyState(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), ...more.map((one) => h("p", {}, one)));
}

export function loading(text = "Loading…") {
  return h("div", { class: "empty loading", "aria-busy": "true" }, h("span", { class: "spinner" }), text);
}

export function errorState(error, retry) {
  const again = retry && h("button", { class: "button", onclick: retry }, "Try again");
  return h("div", { class: "empty error-state", role: "alert" },
    h("p", { class: "empty-title" }, error.message || String(error)), again);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** A button that asks for confirmation before an action that cannot be undone. */
export function confirmButton(text, question, action, kind = "") {
  const button = h("button", { class: `button ${kind}`, type: "button" }, text);
  let timer = null;
  const reset = () => {
    timer = null;
    button.textContent = text;
    button.classList.remove("asking");
  };
  button.addEventListener("click", () => {
    if (timer === null) {
      button.textContent = question;
      button.classList.add("asking");
      timer = setTimeout(reset, 4000);
      return;
    }
    clearTimeout(timer);
    reset();
    action();
  });
  return button;
}
