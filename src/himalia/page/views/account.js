// The signed-in caller in the bar, and the button to sign out.

import { h } from "../widgets/elements.js";
import { moment } from "../widgets/format.js";

const ANONYMOUS = "anonymous"; // on a server without authentication

/** `onSignOut()` is called when the user signs out. */
export function accountBadge(onSignOut) {
  const name = h("span", { class: "caller mono" });
  const button = h("button", { class: "button quiet tiny", type: "button", onclick: onSignOut }, "Sign out");
  const element = h("span", { class: "account", hidden: true }, name, button);
  return {
    element,
    /** Show a session, `{caller, expires}`; null hides the badge. */
    show(session) {
      element.hidden = !session || session.caller === ANONYMOUS;
      name.textContent = session?.caller ?? "";
      name.title = session?.expires ? `Signed in as ${session.caller} until ${moment(session.expires)}` : "";
      button.hidden = !session?.expires;
    },
  };
}
