// Signing in: a view of its own at first, and a dialogue over the open view when the session has ended.

import { signIn } from "../live/api.js";
import { h } from "../widgets/elements.js";

const HOW = "The server prints an address with its token when it starts; 'himalia token' prints the token again. A key from its keys file works too.";

/** `onSignedIn({caller, expires})` is called once the server has accepted the key, which is not stored. */
function signInForm(title, explanations, onSignedIn) {
  const key = h("input", { class: "input mono", type: "password", autocomplete: "current-password", id: "token", required: true });
  const complaint = h("p", { class: "complaint", role: "alert", hidden: true });
  const button = h("button", { class: "button primary", type: "submit" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const session = await signIn(key.value.trim());
      key.value = "";
      onSignedIn(session);
    } catch (error) {
      complaint.textContent = error.message;
      complaint.hidden = false;
      key.select();
    } finally {
      button.disabled = false;
    }
  };
  const element = h("form", { class: "card sign-in-form", onsubmit: submit }, h("h1", {}, title),
    ...explanations.map((one) => h("p", { class: "note" }, one)), h("label", { for: "token" }, "Token or key"), key, complaint, button);
  return { element, focus: () => key.focus() };
}

export function signInView({ onSignedIn }) {
  const form = signInForm("Sign in", [HOW], onSignedIn);
  return { element: h("section", { class: "view sign-in" }, form.element), close() {}, title: "Sign in", focus: form.focus };
}

/** Open a dialogue over the view, which stays as it is. Returns a function that closes it. */
export function openSignInDialog(onSignedIn) {
  const dialog = h("dialog", { class: "sign-in-again", "aria-label": "Sign in again", oncancel: (event) => event.preventDefault() });
  const close = () => dialog.remove();
  const form = signInForm("Sign in again", [
    "You are signed out: your session has expired, or was ended. The page reconnects when you sign in, and you continue where you were.", HOW], onSignedIn);
  dialog.append(form.element);
  document.body.append(dialog);
  dialog.showModal();
  form.focus();
  return close;
}
