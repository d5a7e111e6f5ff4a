// The server's routes, relative to the page: a proxy may serve it under a path.
// Every refusal becomes one Refusal, with the server's own sentence.

import { events } from "./events.js";
import { Refusal } from "./refusal.js";

const UNREACHABLE = {
  reason: "unreachable",
  message: "the server cannot be reached",
  remedy: "try again when it is back"
};
const BROKEN_OFF = {
  reason: "broken-off",
  message: "the connection ended before the answer",
  remedy: "solve it again"
};

export async function getJson(path) {
  return (await asked(path, {})).json();
}

export async function getText(path) {
  return (await asked(path, {})).text();
}

export async function post(path, body) {
  return (await asked(path, posting(body))).json();
}

/**
 * Every `segment` event of POST /solve/stream, then the `answer`; throws a Refusal where the
 * server sends one.
 */
export async function* streamed(body, signal) {
  const response = await asked("solve/stream", { ...posting(body), signal });
  try {
    for await (const { name, data } of events(response.body)) {
      if (name === "error") throw new Refusal(data.error);
      yield { name, data };
      if (name === "answer") return;
    }
  } catch (error) {
    throw isOwn(error) ? error : new Refusal(BROKEN_OFF);
  }
  throw new Refusal(BROKEN_OFF);
}

const posting = (body) => ({
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body)
});

const isOwn = (error) => error instanceof Refusal || error.name === "AbortError";

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    throw isOwn(error) ? error : new Refusal(UNREACHABLE);
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

async function refusalOf(response) {
  const said = await response.json().catch(() => null);
  const remedy = "look into the server's log";
  return new Refusal(
    said?.error ?? { reason: "unknown", message: `the server answered ${response.status}`, remedy }
  );
}
