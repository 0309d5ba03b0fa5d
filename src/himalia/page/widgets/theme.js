// Light and dark: as the system has it, until somebody chooses.

import { h } from "./elements.js";

const KEY = "himalia-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function currentTheme() {
  return document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
}

/** Be told when it changes; returns a function that ends this. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a browser that keeps nothing for pages
  }
}

function choose(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It holds for this page, then.
  }
  tell();
}

function tell() {
  for (const listener of listeners) listener();
}

export function startTheme() {
  const theme = stored();
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  system.addEventListener("change", tell);
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
