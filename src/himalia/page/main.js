// The page: sections, addresses, and the connection that they share.

import { accountBadge } from "./views/account.js";
import { session, signIn, signOut } from "./live/api.js";
import { Connection } from "./live/connection.js";
import { emptyState, errorState, h, loading } from "./widgets/elements.js";
import { startKeyboard } from "./widgets/keyboard.js";
import { holdPolls } from "./live/polling.js";
import { SECTIONS, navigate, parseRoute } from "./router.js";
import "./sections.js";
import { openSignInDialog, signInView } from "./views/sign_in.js";
import { startTheme, themeButton } from "./widgets/theme.js";
import { toast } from "./widgets/toasts.js";

const BANNER_AFTER_MS = 700; // a quicker reconnection is not shown

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const connection = new Connection(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`);
const account = accountBadge(() => leave());
let view = null;
let caller = null; // who is signed in
let closeDialog = null; // closes the dialogue for signing in again, while it is open

function viewFor(section, name, route) {
  if (section) return section.view({ connection, navigate, route });
  return { element: emptyState(`There is no section “${name}”.`), close() {}, title: "Not found" };
}

function show(next) {
  view?.close();
  view = next;
  main.replaceChildren(next.element);
  document.title = `${next.title} · Himalia`;
  next.focus?.();
}

function showRoute() {
  if (caller === null) return;
  const route = parseRoute(location.hash);
  const name = route.parts[0] ?? SECTIONS[0].name;
  for (const link of nav.children) {
    if (link.dataset.section === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    show(viewFor(SECTIONS.find((section) => section.name === name), name, route));
  } catch (error) {
    console.error(error);
    show({ element: errorState(error), close() {}, title: "Error" });
  }
}

// Signing in and out

/** Sign in with a key in the address, and remove it from there before anything else can see it. */
async function signInByAddress() {
  const found = location.hash.match(/^#token=([^&]+)/);
  if (!found) return;
  history.replaceState(null, "", location.pathname);
  await signIn(decodeURIComponent(found[1])).catch((error) => toast(error.message, "bad"));
}

async function start() {
  main.replaceChildren(loading("Connecting…"));
  try {
    enter(await session());
  } catch (error) {
    if (error.status === 401) return showSignIn();
    show({ element: errorState(error, start), close() {}, title: "No connection" });
  }
}

function enter(found) {
  caller = found.caller;
  account.show(found);
  connection.open();
  showRoute();
}

function showSignIn() {
  show(signInView({ onSignedIn: enter }));
}

async function leave() {
  try {
    await signOut();
  } catch (error) {
    if (error.status !== 401) return toast(error.message, "bad");
  }
  caller = null;
  closeDialog?.();
  closeDialog = null;
  account.show(null);
  connection.close();
  showSignIn();
}

/** The server refuses the session. The open view is hidden, and stays as it is, until the user signs in. */
function lock() {
  if (caller === null || closeDialog) return;
  holdPolls(true);
  connection.close();
  document.documentElement.dataset.locked = "true";
  closeDialog = openSignInDialog(unlock);
}

function unlock(found) {
  const isSame = found.caller === caller;
  closeDialog?.();
  closeDialog = null;
  delete document.documentElement.dataset.locked;
  caller = found.caller;
  account.show(found);
  // Another caller must not see the view of the one before.
  if (!isSame) showRoute();
  holdPolls(false);
  connection.open();
  dispatchEvent(new Event("himalia:signed-in"));
}

/** Unlock if the user has signed in in another tab: the cookie is the same. */
async function checkSession() {
  if (!closeDialog) return;
  const found = await session().catch(() => null);
  if (found && closeDialog) unlock(found);
}

// The state of the connection

let bannerTimer = null;

function showConnection() {
  document.documentElement.dataset.connection = connection.state;
  clearTimeout(bannerTimer);
  if (connection.state === "waiting") {
    // A refused handshake looks like a broken network; a 401 here shows that the session has ended.
    session().catch(() => {});
    bannerTimer = setTimeout(() => {
      banner.hidden = false;
      banner.replaceChildren(h("span", {}, "The connection is lost. What you see is not updated; no data is lost, and the page reconnects by itself."),
        h("button", { class: "button tiny", type: "button", onclick: () => connection.retry() }, "Try now"));
    }, banner.hidden ? BANNER_AFTER_MS : 0);
  } else if (connection.state === "open" || connection.state === "closed") {
    banner.hidden = true;
  }
}

startTheme();
const showHelp = startKeyboard(SECTIONS, () => view);
nav.append(...SECTIONS.map(({ name, title }) => h("a", { href: `#/${name}`, "data-section": name }, title)));
document.getElementById("bar-end").append(
  account.element,
  h("span", { class: "connection-dot", title: "Connection to the server" }),
  h("button", { class: "button quiet icon", type: "button", "aria-label": "Keys", title: "Keys (?)", onclick: showHelp }, "?"),
  themeButton());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the view
  main.focus();
});
connection.addEventListener("change", showConnection);
addEventListener("hashchange", showRoute);
addEventListener("himalia:unauthorized", lock);
addEventListener("focus", checkSession);
await signInByAddress();
await start();
