// A toy section: how many topics there are. It becomes views/toy.js in a copy of the page.

import { get } from "../live/api.js";
import { poll } from "../live/polling.js";
import { addSection } from "../router.js";
import { h } from "../widgets/elements.js";
import { plural } from "../widgets/format.js";

addSection({ name: "toy", title: "Toy", key: "y", view: toyView });

function toyView() {
  const text = h("p");
  const show = async (signal) => {
    const { topics } = await get("/topics", {}, signal);
    text.textContent = plural(topics.length, "topic");
  };
  return { element: h("section", { class: "view" }, h("h1", {}, "Toy"), text), close: poll(show, 1000), title: "Toy" };
}
