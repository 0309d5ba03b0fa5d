// Signing in: on a page of its own at first, and in a dialogue over what is open when a session has ended.

import { signIn } from "../live/api.js";
import { h } from "../widgets/elements.js";

const HOW = "The server printed an address with its token when it started; 'himalia token' prints it again. A key from its keys file works as well.";

/** `onSignedIn({caller, expires})` is called once the server has taken the key, which is not kept. */
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

/** Ask over the page, which stays as it is below: whoever signs in again is back at the same place. Returns a function that closes it. */
export function askToSignIn(onSignedIn) {
  const dialog = h("dialog", { class: "sign-in-again", "aria-label": "Sign in again", oncancel: (event) => event.preventDefault() });
  const close = () => dialog.remove();
  const form = signInForm("Sign in again", [
    "You are signed out: your session has expired, or was ended. The page does not reconnect until you sign in; then you are where you were.", HOW], onSignedIn);
  dialog.append(form.element);
  document.body.append(dialog);
  dialog.showModal();
  form.focus();
  return close;
}
