// A picture of the thinking: the answer after some of the segments, side by side, as one image.

import { paint } from "./painter.js";

const BOARD = 260; // pixels of a side
const GAP = 20;
const CAPTION = 34;
const HEAD = 56;
const MOST = 8; // pictures, with the question
const A_ROW = 4;

/** A canvas with the question and the frames of one attempt. */
export function stripOf({ model, kind, grid, frames }) {
  const shown = chosenFrames(frames, MOST - 1);
  const pictures = [{ words: "the puzzle", cells: kind.picture(grid, null) }];
  for (const frame of shown)
    pictures.push({ words: wordsOf(frame), cells: pictureOf(kind, grid, frame) });
  const canvas = canvasFor(pictures.length);
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  write(context, style, "600 22px system-ui, sans-serif", titleOf(model, frames), GAP, 38);
  pictures.forEach(({ words, cells }, index) => {
    const left = GAP + (index % A_ROW) * (BOARD + GAP);
    const top = HEAD + Math.floor(index / A_ROW) * (BOARD + CAPTION + GAP);
    paint(context, kind.board, cells, { left, top, side: BOARD });
    write(context, style, "16px system-ui, sans-serif", words, left, top + BOARD + 24);
  });
  return canvas;
}

export function write(context, style, font, words, left, base) {
  context.font = font;
  context.fillStyle = style.color;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText(words, left, base);
}

function canvasFor(count) {
  const canvas = document.createElement("canvas");
  const columns = Math.min(count, A_ROW);
  const rows = Math.ceil(count / A_ROW);
  canvas.width = GAP + columns * (BOARD + GAP);
  canvas.height = HEAD + rows * (BOARD + CAPTION + GAP);
  return canvas;
}

/** The first and the last frame, and others at even distances between them; at most `most`. */
export function chosenFrames(frames, most) {
  const count = Math.min(frames.length, most);
  if (count < 2) return frames.slice(-1);
  const step = (frames.length - 1) / (count - 1);
  return Array.from({ length: count }, (_, index) => frames[Math.round(index * step)]);
}

export const pictureOf = (kind, grid, { solution }) =>
  kind.isApart ? kind.picture(solution, null) : kind.picture(grid, solution);
export const wordsOf = ({ segment, verified }) => `segment ${segment}${verified ? ", proven" : ""}`;

export function titleOf(model, frames) {
  const count = frames.at(-1).segment;
  return `HRM Edge · ${model.name} · ${count} ${count === 1 ? "segment" : "segments"}`;
}
