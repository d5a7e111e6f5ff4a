// This browser in place of a server: files that `hrm site` wrote, and a worker that solves.

import { badPuzzle, Refusal } from "../refusal.js";
import { readBoard } from "./board.js";

const LOST = {
  reason: "lost",
  message: "this browser could not load or run the model",
  remedy: "reload the page, or try a newer browser"
};

const addressOf = (path) => new URL(path, document.baseURI).href;
// The policy of the page admits the address of a script only from here.
const policy = globalThis.trustedTypes?.createPolicy("site", { createScriptURL: addressOf });
const scriptAt = (path) => policy?.createScriptURL(path) ?? addressOf(path);

navigator.serviceWorker?.register(scriptAt("offline.js")).catch(() => {}); // only online, then
const worker = new Worker(scriptAt("web/js/browser/worker.js"), { type: "module" });
const lost = new Promise((_, reject) => {
  worker.onerror = () => reject(new Refusal(LOST));
});
lost.catch(() => {}); // the puzzles that wait hear of it

/** `models`, `kinds`, or one of the boards `puzzle?kind=…` that were made beforehand. */
export async function getJson(path) {
  const [name, query] = path.split("?");
  const response = await fetch(`${name}.json`).catch(() => null);
  if (!response?.ok) throw new Refusal(LOST);
  const found = await response.json();
  if (!query) return found;
  const wanted = [...new URLSearchParams(query)];
  const boards = found.filter((made) => wanted.every(([key, value]) => `${made[key]}` === value));
  return boards[Math.floor(Math.random() * boards.length)];
}

export async function post(path, body) {
  if (path === "puzzle") return judged(body);
  for await (const { name, data } of streamed(body)) if (name === "answer") return data;
  throw new Refusal(LOST);
}

/** Every `segment` event of a puzzle, then the `answer`: the events of a server. */
export async function* streamed(body, signal) {
  const model = await modelWith("name", body.model);
  const { grid } = readBoard(model, body.puzzle);
  const most = model.max_segments;
  if (body.max_segments > most) {
    const message = `max_segments is ${body.max_segments}; this model runs at most ${most}`;
    throw new Refusal({ reason: "bad-request", message, remedy: `use 1 to ${most}` });
  }
  const address = addressOf(`models/${encodeURIComponent(model.name)}.onnx`);
  const { port1: port, port2 } = new MessageChannel();
  worker.postMessage({ ...body, model, address, puzzle: grid, askedAt: Date.now() }, [port2]);
  for (;;) {
    const event = await Promise.race([lost, nextOf(port)]);
    signal?.throwIfAborted();
    if (!event) throw new Refusal(LOST);
    yield event;
    if (event.name === "answer") return;
  }
}

/** The worker runs a segment only when somebody waits for it. */
function nextOf(port) {
  return new Promise((resolve) => {
    port.onmessage = ({ data }) => resolve(data);
    port.postMessage("next");
  });
}

async function judged({ kind, puzzle, solution }) {
  const board = readBoard(await modelWith("kind", kind), puzzle);
  if (!board.proves(board.encode(solution)))
    throw badPuzzle("this answer breaks a rule or changes a given", "correct it");
  return { verified: true };
}

async function modelWith(field, value) {
  const { models } = await getJson("models");
  return models.find((model) => model[field] === value);
}
