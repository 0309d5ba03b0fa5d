// The page: sections, addresses, and the connection that they share.

import { accountBadge } from "./views/account.js";
import { session, signIn, signOut } from "./live/api.js";
import { Connection } from "./live/connection.js";
import { emptyState, errorState, h, loading } from "./widgets/elements.js";
import { startKeyboard } from "./widgets/keyboard.js";
import { holdPolls } from "./live/polling.js";
import { navigate, parseRoute } from "./router.js";
import { SECTIONS } from "./sections.js";
import { askToSignIn, signInView } from "./views/sign_in.js";
import { startTheme, themeButton } from "./widgets/theme.js";
import { toast } from "./widgets/toasts.js";

const BANNER_AFTER_MS = 700; // a reconnection that is quicker than this is nobody's business

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const connection = new Connection(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`);
const account = accountBadge(() => leave());
let view = null;
let caller = null; // who is signed in
let closeDialog = null; // of the dialogue that asks to sign in again, while it is open

function viewFor(section, name, route) {
  if (section) return section.view({ connection, navigate, route });
  return { element: emptyState(`There is no “${name}” here.`), close() {}, title: "Nothing here" };
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

/** A key in the address is taken out of it before anything else can see it. */
async function takeKey() {
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
    show({ element: errorState(error, start), close() {}, title: "No answer" });
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

/** The server no longer takes our session. What is open stays as it is, out of sight, until somebody signs in. */
function lock() {
  if (caller === null || closeDialog) return;
  holdPolls(true);
  connection.close();
  document.documentElement.dataset.locked = "true";
  closeDialog = askToSignIn(unlock);
}

function unlock(found) {
  const isSame = found.caller === caller;
  closeDialog?.();
  closeDialog = null;
  delete document.documentElement.dataset.locked;
  caller = found.caller;
  account.show(found);
  // Somebody else does not see what the one before had open.
  if (!isSame) showRoute();
  holdPolls(false);
  connection.open();
  dispatchEvent(new Event("himalia:signed-in"));
}

/** Signed in meanwhile, in another tab: the cookie is the same. */
async function lookAgain() {
  if (!closeDialog) return;
  const found = await session().catch(() => null);
  if (found && closeDialog) unlock(found);
}

// The connection, as everybody sees it

let bannerTimer = null;

function showConnection() {
  document.documentElement.dataset.connection = connection.state;
  clearTimeout(bannerTimer);
  if (connection.state === "waiting") {
    // A handshake that is refused looks like a network that broke; a 401 tells that it is our session.
    session().catch(() => {});
    bannerTimer = setTimeout(() => {
      banner.hidden = false;
      banner.replaceChildren(h("span", {}, "The connection is lost. What you see stands still; nothing is lost, and the page reconnects by itself."),
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
  event.preventDefault(); // the address is the view's
  main.focus();
});
connection.addEventListener("change", showConnection);
addEventListener("hashchange", showRoute);
addEventListener("himalia:unauthorized", lock);
addEventListener("focus", lookAgain);
await takeKey();
await start();
