// How sure the model is as it thinks: the halting margin of each attempt over its segments, the
// level above which it may stop, and the segment after which the answer of the chosen attempt was
// proven.

import { ticksOf } from "./charts.js";
import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [640, 200];
const EDGE = { left: 60, right: 116, top: 30, bottom: 28 }; // words have room beside the curve
const PROOF_WORDS = 180; // their greatest width, on a phone
const FEWEST = 8; // segments on the axis, so that the first ones do not jump

export class Curve {
  constructor(node, threshold) {
    this.threshold = threshold;
    this.node = node;
    this.chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "curve" });
    node.replaceChildren(this.chart);
    this.draw(new Map(), null, 0);
  }

  /** The attempts up to that segment; the chosen one stands out. */
  draw(attempts, chosen, segment) {
    const lines = [...attempts].map(([attempt, frames]) => [
      attempt,
      frames.filter((frame) => frame.segment <= segment)
    ]);
    const scale = scaleOf(lines, this.threshold);
    const own = lines.find(([attempt]) => attempt === chosen)?.[1];
    const last = own?.at(-1);
    const others = lines.filter(([attempt]) => attempt !== chosen);
    const proof = own?.find((frame) => frame.verified);
    this.chart.setAttribute(
      "aria-label",
      last ? labelOf(last, proof, this.threshold) : "How sure it is: nothing yet"
    );
    this.chart.replaceChildren(
      ...axes(scale, this.threshold),
      ...others.map(([, frames]) => svg("path", { class: "margin other", d: path(frames, scale) })),
      ...(last ? chosenLine(own, scale) : []),
      ...(proof ? proofMark(proof, scale) : [])
    );
  }
}

function labelOf(last, proof, threshold) {
  const found = proof ? `; proof found after ${proof.segment}` : "";
  const sure = `How sure it is: ${last.margin.toFixed(2)} after ${last.segment} segments`;
  return `${sure}; it may stop above ${shortened(threshold)}${found}`;
}

/** A line at the segment of the proof, with its words above the curve. */
function proofMark(proof, scale) {
  const x = scale.x(proof.segment);
  const middle = Math.max(x, PROOF_WORDS / 2);
  const place = { x: middle, y: EDGE.top - 6, "text-anchor": "middle" };
  return [
    svg("line", { class: "proof", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }),
    svg("text", { class: "tick proof-words", ...place }, "proof found here")
  ];
}

function chosenLine(frames, scale) {
  const last = frames.at(-1);
  const floor = HEIGHT - EDGE.bottom;
  const left = scale.x(frames[0].segment);
  const area = `${path(frames, scale)}L${scale.x(last.segment)} ${floor}L${left} ${floor}Z`;
  return [
    svg("path", { class: "under", d: area }),
    svg("path", { class: "margin", d: path(frames, scale) }),
    svg("circle", { class: "head", cx: scale.x(last.segment), cy: scale.y(last.margin), r: 5 })
  ];
}

function axes(scale, threshold) {
  const level = scale.y(threshold);
  return [
    svg("rect", {
      class: "content",
      x: EDGE.left,
      y: EDGE.top,
      width: WIDTH - EDGE.left - EDGE.right,
      height: Math.max(0, level - EDGE.top)
    }),
    svg("line", { class: "level", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: level, y2: level }),
    marginTick(threshold, scale),
    svg("text", { class: "tick", x: WIDTH - EDGE.right + 8, y: level + 4 }, "may stop"),
    ...[scale.low, scale.high]
      .filter((value) => Math.abs(scale.y(value) - level) > 16)
      .map((value) => marginTick(value, scale)),
    ...ticksOf(scale.count).map((tick) =>
      svg(
        "text",
        { class: "tick", x: scale.x(tick), y: HEIGHT - 8, "text-anchor": "middle" },
        `${tick}`
      )
    )
  ];
}

function marginTick(value, scale) {
  const place = { class: "tick", x: EDGE.left - 8, y: scale.y(value) + 4, "text-anchor": "end" };
  return svg("text", place, shortened(value));
}

function scaleOf(lines, threshold) {
  const margins = lines
    .flatMap(([, frames]) => frames.map(({ margin }) => margin))
    .filter(Number.isFinite);
  const count = Math.max(FEWEST, ...lines.map(([, frames]) => frames.at(-1)?.segment ?? 1));
  const [low, high] = [Math.min(threshold - 1, ...margins), Math.max(threshold + 1, ...margins)];
  const [width, height] = [WIDTH - EDGE.left - EDGE.right, HEIGHT - EDGE.top - EDGE.bottom];
  return {
    count,
    low,
    high,
    x: (segment) => rounded(EDGE.left + ((segment - 1) / (count - 1)) * width),
    y: (margin) => rounded(EDGE.top + ((high - margin) / (high - low)) * height)
  };
}

const path = (frames, scale) =>
  frames
    .map(
      ({ segment, margin }, index) => `${index ? "L" : "M"}${scale.x(segment)} ${scale.y(margin)}`
    )
    .join("");
const rounded = (value) => Math.round(value * 10) / 10;
const shortened = (value) =>
  Math.abs(value) < 10
    ? value.toFixed(1).replace("-", "−")
    : `${Math.round(value)}`.replace("-", "−");
