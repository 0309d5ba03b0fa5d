// Publishing to a topic: what is typed is sent as it is typed.

import { postText, topicPath } from "../live/api.js";
import { h } from "../widgets/elements.js";
import { count } from "../widgets/format.js";
import { attempt, toast } from "../widgets/toasts.js";

export function publishForm(topic) {
  const payload = h("textarea", {
    class: "input mono", rows: "4", spellcheck: "false", "aria-label": "Payload, JSON", placeholder: '{"sku": "A-17", "total": 120}',
  });
  const headers = h("input", { class: "input mono grow", "aria-label": "Headers, JSON", placeholder: 'Headers, if any: {"source": "web"}' });
  const button = h("button", { class: "button primary", type: "submit" }, "Publish");
  const send = async (event) => {
    event.preventDefault();
    await attempt(async () => {
      const answer = await postText(topicPath(topic, "/messages"), messageText(payload.value, headers.value));
      toast(`Stored at offset ${count(answer.offset)}`, "good");
      payload.select();
    }, button);
  };
  const onkeydown = (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && send(event);
  return h("form", { class: "card publish", hidden: true, onsubmit: send, onkeydown }, payload,
    h("div", { class: "inline-form" }, headers, button));
}

/** The message as it is sent: what was typed goes into it as it was typed. */
function messageText(payload, headers) {
  checkJson(payload, "the payload");
  if (!headers.trim()) return `{"payload":${payload}}`;
  checkJson(headers, "the headers");
  return `{"payload":${payload},"headers":${headers}}`;
}

/** Only whether it is one JSON value: the parsed value is not used, since parsing changes numbers. */
function checkJson(text, what) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
}
