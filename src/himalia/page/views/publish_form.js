// The form that publishes to a topic. Payload and headers are sent exactly as typed.

import { postText, topicPath } from "../live/api.js";
import { h } from "../widgets/elements.js";
import { count } from "../widgets/format.js";
import { withErrorToast, toast } from "../widgets/toasts.js";

export function publishForm(topic) {
  const payload = h("textarea", {
    class: "input mono", rows: "4", spellcheck: "false", "aria-label": "Payload, JSON", placeholder: '{"sku": "A-17", "total": 120}',
  });
  const headers = h("input", { class: "input mono grow", "aria-label": "Headers, JSON", placeholder: 'Headers (optional): {"source": "web"}' });
  const button = h("button", { class: "button primary", type: "submit" }, "Publish");
  const send = async (event) => {
    event.preventDefault();
    await withErrorToast(async () => {
      const answer = await postText(topicPath(topic, "/messages"), messageText(payload.value, headers.value));
      toast(`Stored at offset ${count(answer.offset)}`, "good");
      payload.select();
    }, button);
  };
  const onkeydown = (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && send(event);
  return h("form", { class: "card publish", hidden: true, onsubmit: send, onkeydown }, payload,
    h("div", { class: "inline-form" }, headers, button));
}

/** The body of the request, with payload and headers exactly as typed. */
function messageText(payload, headers) {
  checkJson(payload, "the payload");
  if (!headers.trim()) return `{"payload":${payload}}`;
  checkJson(headers, "the headers");
  return `{"payload":${payload},"headers":${headers}}`;
}

/** Throw if the text is not one JSON value. The parsed value is not used: parsing changes numbers. */
function checkJson(text, what) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}
