// Asking for the token, where the server wants one and the browser has none.

import { signIn } from "./api.js";
import { h } from "./elements.js";

export function signInView({ onSignedIn }) {
  const token = h("input", { class: "input mono", type: "password", autocomplete: "current-password", id: "token", required: true });
  const complaint = h("p", { class: "complaint", role: "alert", hidden: true });
  const button = h("button", { class: "button primary", type: "submit" }, "Sign in");
  const element = h("section", { class: "view sign-in" }, h("form", { class: "card", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await signIn(token.value.trim());
      onSignedIn();
    } catch (error) {
      complaint.textContent = error.message;
      complaint.hidden = false;
      token.select();
    } finally {
      button.disabled = false;
    }
  } }, h("h1", {}, "Sign in"), h("p", { class: "note" }, "The server printed an address with its token when it started. A key from its keys file works as well."),
  h("label", { for: "token" }, "Token or key"), token, complaint, button));
  return { element, close() {}, title: "Sign in", focus: () => token.focus() };
}
