// The page: sections, addresses, and the connection that they share.

import { health, signIn } from "./api.js";
import { Connection } from "./connection.js";
import { consoleView } from "./console.js";
import { emptyState, errorState, h, loading } from "./elements.js";
import { executionView } from "./execution.js";
import { executionsView } from "./executions.js";
import { kernelsView } from "./kernels.js";
import { startKeyboard } from "./keyboard.js";
import { pipelineView } from "./pipeline.js";
import { navigate, parseRoute } from "./router.js";
import { signInView } from "./sign_in.js";
import { systemView } from "./system.js";
import { startTheme, themeButton } from "./theme.js";
import { toast } from "./toasts.js";
import { topicView } from "./topic.js";
import { topicsView } from "./topics.js";

const SECTIONS = [["topics", "Topics"], ["kernels", "Kernels"], ["executions", "Executions"], ["pipeline", "Pipeline"], ["system", "System"]];
const BANNER_AFTER_MS = 700; // a reconnection that is quicker than this is nobody's business

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const connection = new Connection(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`);
let view = null;
let isSignedIn = false;

function viewFor(route) {
  const [section, name, what] = route.parts;
  const context = { connection, navigate, route };
  switch (section) {
    case undefined:
    case "topics":
      return name ? topicView(context) : topicsView(context);
    case "kernels":
      if (what === "executions" && route.parts[3]) return executionView(context);
      return name ? consoleView(context) : kernelsView(context);
    case "executions":
      return executionsView(context);
    case "pipeline":
      return pipelineView(context);
    case "system":
      return systemView(context);
    default:
      return { element: emptyState(`There is no “${section}” here.`), close() {}, title: "Nothing here" };
  }
}

function show(next) {
  view?.close();
  view = next;
  main.replaceChildren(next.element);
  document.title = `${next.title} · Himalia`;
  next.focus?.();
}

function showRoute() {
  if (!isSignedIn) return;
  const route = parseRoute(location.hash);
  const section = route.parts[0] ?? "topics";
  for (const link of nav.children) {
    if (link.dataset.section === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    show(viewFor(route));
  } catch (error) {
    console.error(error);
    show({ element: errorState(error), close() {}, title: "Error" });
  }
}

function showSignIn() {
  isSignedIn = false;
  connection.close();
  show(signInView({ onSignedIn: start }));
}

/** A token in the address is taken out of it before anything else can see it. */
async function takeToken() {
  const found = location.hash.match(/^#token=([^&]+)/);
  if (!found) return;
  history.replaceState(null, "", location.pathname);
  await signIn(decodeURIComponent(found[1])).catch((error) => toast(error.message, "bad"));
}

async function start() {
  main.replaceChildren(loading("Connecting…"));
  try {
    const state = await health();
    // Strangers are told the status and nothing else.
    if (state.version === undefined) return showSignIn();
  } catch (error) {
    show({ element: errorState(error, start), close() {}, title: "No answer" });
    return;
  }
  isSignedIn = true;
  connection.open();
  showRoute();
}

// The connection, as everybody sees it

let bannerTimer = null;

function showConnection() {
  document.documentElement.dataset.connection = connection.state;
  clearTimeout(bannerTimer);
  if (connection.state === "waiting") {
    bannerTimer = setTimeout(() => {
      banner.hidden = false;
      banner.replaceChildren(h("span", {}, "The connection is lost. What you see stands still; nothing is lost, and it goes on by itself."),
        h("button", { class: "button tiny", type: "button", onclick: () => connection.retry() }, "Try now"));
    }, banner.hidden ? BANNER_AFTER_MS : 0);
    checkKey();
  } else if (connection.state === "open") {
    banner.hidden = true;
  }
}

/** A handshake that is refused looks like a network that broke; health tells whether it is our key. */
async function checkKey() {
  const state = await health().catch(() => null);
  if (state && state.version === undefined && isSignedIn) showSignIn();
}

startTheme();
const showHelp = startKeyboard(() => view);
nav.append(...SECTIONS.map(([section, name]) => h("a", { href: `#/${section}`, "data-section": section }, name)));
document.getElementById("bar-end").append(
  h("span", { class: "connection-dot", title: "Connection to the server" }),
  h("button", { class: "button quiet icon", type: "button", "aria-label": "Keys", title: "Keys (?)", onclick: showHelp }, "?"),
  themeButton());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view's
  main.focus();
});
connection.addEventListener("change", showConnection);
addEventListener("hashchange", showRoute);
addEventListener("himalia:unauthorized", () => isSignedIn && showSignIn());
await takeToken();
await start();
