// Runs a model in a thread of its own, one segment after another, until the halting rule of its
// bundle ends the puzzle.

import { cellsOf } from "../grids.js";
import { readBoard } from "./board.js";
import { env, InferenceSession, Tensor } from "./ort.mjs";

env.wasm.numThreads = 1; // more would need headers that plain hosts do not send
const runtime = unpacked("ort.bin");
runtime.catch(() => {}); // the first puzzle hears of it
const sessions = new Map();

// One message for each puzzle; its port asks for every event.
onmessage = ({ data, ports: [port] }) => {
  const events = eventsOf(data);
  port.onmessage = async () => {
    const { value } = await events.next().catch((error) => {
      console.error(error);
      return { value: null };
    });
    port.postMessage(value);
  };
};

async function* eventsOf({ model, address, puzzle, policy, max_segments, askedAt }) {
  const board = readBoard(model, puzzle);
  const session = await sessionOf(address);
  const rule = {
    policy: policy ?? model.halting.policy,
    threshold: model.halting.threshold,
    maxSegments: max_segments ?? model.max_segments
  };
  const beganAt = Date.now();
  let solution = board.grid;
  let inputs = firstInputs(session, board.tokens, model.puzzle_vector);
  for (let segment = 1; ; segment++) {
    const outputs = await session.run(inputs);
    const tokens = outputs.answer_BT.data;
    const [margin] = outputs.halt_margin_B.data;
    const verified = board.proves(tokens);
    const before = cellsOf(solution);
    solution = board.decode(tokens);
    const cells = cellsOf(solution);
    const changed = [...cells.keys()].filter((cell) => cells[cell] !== before[cell]);
    yield {
      name: "segment",
      data: { segment, attempt: 0, solution, changed, margin, verified }
    };
    const halted = haltedBy(margin, segment, verified, rule);
    if (halted) {
      const computeMs = Date.now() - beganAt;
      yield {
        name: "answer",
        data: {
          solution,
          status: verified ? "proven" : "unfinished",
          how: "plain",
          verified,
          segments: segment,
          halted_by: halted,
          margin,
          queue_ms: beganAt - askedAt,
          compute_ms: computeMs,
          model: model.name,
          attempts: 1,
          total_segments: segment,
          votes: null,
          vote_share: null,
          route: board.route(solution)
        }
      };
      return;
    }
    inputs = nextInputs(inputs, outputs);
  }
}

/** Why a puzzle stops after this segment; null if it goes on. Its answers can be proven. */
function haltedBy(margin, segment, verified, { policy, threshold, maxSegments }) {
  if (policy === "verified" && verified) return "proven";
  if (policy === "learned" && margin > threshold) return "learned";
  return segment >= maxSegments ? "max_segments" : null;
}

/** A fresh row: the graph starts it from its own initial state, whatever the carry holds. */
function firstInputs(session, tokens, vector) {
  const carries = session.inputMetadata.filter(({ name }) => name.startsWith("z_"));
  const zeros = carries.map(({ name, shape: [, ...sizes] }) => {
    const count = sizes.reduce((product, size) => product * size);
    return [name, new Tensor("float32", new Float32Array(count), [1, ...sizes])];
  });
  return {
    tokens_BT: new Tensor("int32", tokens, [1, tokens.length]),
    puzzle_vector_BE: new Tensor("float32", vector, [1, vector.length]),
    fresh_B: new Tensor("bool", [true], [1]),
    ...Object.fromEntries(zeros)
  };
}

const nextInputs = (inputs, outputs) => ({
  ...inputs,
  fresh_B: new Tensor("bool", [false], [1]),
  z_high_BND: outputs.z_high_BND_next,
  z_low_BND: outputs.z_low_BND_next
});

function sessionOf(address) {
  if (!sessions.has(address)) sessions.set(address, opened(address));
  return sessions.get(address);
}

async function opened(address) {
  env.wasm.wasmBinary = await runtime;
  const graph = await (await fetch(address)).arrayBuffer();
  return InferenceSession.create(graph, { executionProviders: ["wasm"] });
}

/** A file that `hrm site` packed with gzip: no host needs to do it. */
async function unpacked(name) {
  const { body } = await fetch(new URL(name, import.meta.url));
  return new Response(body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
