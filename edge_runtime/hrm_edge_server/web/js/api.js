// Who answers the page: a server, or this browser if `hrm site` wrote the page. Both modules have
// the same functions: getJson(path) and post(path, body) for one answer, streamed(body, signal)
// for a puzzle after every segment. They throw a Refusal.

export { Refusal } from "./refusal.js";

export const isSite = document.documentElement.dataset.answers === "browser";

const answering = await (isSite ? import("./browser/answering.js") : import("./server.js"));
export const { getJson, getText, post, streamed } = answering;
