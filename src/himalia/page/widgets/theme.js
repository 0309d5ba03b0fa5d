// The light and the dark theme: the system's, until the user chooses one.

import { h } from "./elements.js";

const KEY = "himalia-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function currentTheme() {
  return document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
}

/** Call `listener` when the theme changes; returns a function that ends this. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // the browser stores nothing for this page
  }
}

function choose(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Then the choice lasts until the page is closed.
  }
  notify();
}

function notify() {
  for (const listener of listeners) listener();
}

export function startTheme() {
  const theme = stored();
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  system.addEventListener("change", notify);
}

export function themeButton() {
  const button = h("button", { class: "button quiet icon", type: "button" });
  const show = () => {
    const other = currentTheme() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "☾" : "☀";
    button.setAttribute("aria-label", `Use the ${other} theme`);
    button.title = `Use the ${other} theme`;
  };
  button.addEventListener("click", () => choose(currentTheme() === "dark" ? "light" : "dark"));
  onTheme(show);
  show();
  return button;
}
