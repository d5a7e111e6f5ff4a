// What an answer means, in words: proven, not proven, or beyond proof; and why the model stopped.

import { isSame } from "./grids.js";

const HALTED = {
  proven: "A proof: the answer keeps every rule",
  learned: "The model: it was sure enough",
  max_segments: "The limit of segments",
  deadline: "The deadline",
  cancelled: "Cancelled",
  failed: "A fault of the engine"
};

/** The mood (good, bad or open), a title and a sentence. */
export function verdictOf(answer, kind, label = null) {
  const told = answer.route && kind.told?.(answer.route);
  if (answer.status === "proven")
    return { mood: "good", title: "Proven", text: told ?? kind.proven };
  const isSpare = told && answer.route.cost === answer.route.optimum;
  if (answer.verified === false)
    return {
      mood: "bad",
      title: "Not proven",
      text: isSpare ? kind.spare(answer) : (told ?? kind.disproven)
    };
  if (label) {
    return isSame(label, answer.solution)
      ? {
          mood: "good",
          title: "Right",
          text: "It is the answer that the task's author gave. The model has never seen it."
        }
      : {
          mood: "bad",
          title: "Wrong",
          text: "The task's author gave another answer; the cells that differ are framed."
        };
  }
  const isHalted = answer.status === "halted";
  const votes =
    answer.attempts > 1 && answer.votes
      ? ` ${Math.round(100 * answer.vote_share)} % of its attempts agree.`
      : "";
  const content = isHalted
    ? `The model says that it is done; it is often wrong.${votes}`
    : "The model had not finished.";
  const text = `${kind.unproven ?? "Nobody can prove an answer to this puzzle."} ${content}`;
  return { mood: "open", title: isHalted ? "The model's word" : "Unfinished", text };
}

/** Name and value of each figure of an answer. */
export function figuresOf(answer, kind, model, elapsedMs) {
  const mostSegments = answer.halted_by === "max_segments" ? answer.segments : model.max_segments;
  return [
    ...(answer.route ? [["Its way", kind.measured(answer.route)]] : []),
    ["Stopped by", HALTED[answer.halted_by] ?? answer.halted_by],
    ...(answer.how && answer.how !== "plain" ? [["Found by", answer.how]] : []),
    ["Segments", `${answer.segments} of at most ${mostSegments}`],
    ...(answer.status === "proven"
      ? [] // which needs no certainty
      : [
          [
            "How sure it was",
            `${signed(answer.margin)}; above ${signed(model.halting.threshold)} it may stop`
          ]
        ]),
    ...(answer.attempts > 1
      ? [["Attempts", `${answer.attempts}, ${answer.total_segments} segments together`]]
      : []),
    ...(answer.attempts > 1 && answer.votes !== null
      ? [["Votes for it", `${answer.votes}, ${Math.round(100 * answer.vote_share)} %`]]
      : []),
    ["Waited for its turn", inMs(answer.queue_ms)],
    ["Computing", inMs(answer.compute_ms)],
    ["From Solve to answer", inMs(elapsedMs)]
  ];
}

const signed = (value) => value.toFixed(2).replace("-", "−");
const inMs = (ms) => (ms < 1000 ? `${ms.toFixed(1)} ms` : `${(ms / 1000).toFixed(2)} s`);
