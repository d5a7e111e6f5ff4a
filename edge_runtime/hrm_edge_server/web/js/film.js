// A video of the thinking: the puzzle, then the answer after each segment. The browser records it
// from a canvas.

import { paint } from "./painter.js";
import { chosenFrames, pictureOf, titleOf, wordsOf, write } from "./strip.js";

const BOARD = 480; // pixels of a side
const GAP = 24;
const HEAD = 56;
const FOOT = 48;
const MOST = 30; // frames
const FRAME_MS = 300;
const LAST_MS = 1500;
const BEAT_MS = 50;
const FORMATS = [
  ["video/mp4;codecs=avc1", "mp4"],
  ["video/webm", "webm"]
];

/**
 * The type of the videos that this browser records, and the ending of their names; undefined if
 * it records none.
 */
export const FORMAT = FORMATS.find(([type]) => window.MediaRecorder?.isTypeSupported(type));

/** Records as long as the video takes, at most ten seconds, and returns it as a blob. */
export async function filmOf({ model, kind, grid, frames }) {
  const canvas = document.createElement("canvas");
  canvas.width = BOARD + 2 * GAP;
  canvas.height = HEAD + BOARD + FOOT;
  const shown = chosenFrames(frames, MOST);
  const scenes = shown.map((frame) => ({
    words: wordsOf(frame),
    cells: pictureOf(kind, grid, frame)
  }));
  scenes.unshift({ words: "the puzzle", cells: kind.picture(grid, null) });
  const recording = new Recording(canvas);
  for (const [index, scene] of scenes.entries()) {
    paintScene(canvas, kind.board, titleOf(model, frames), scene);
    await recording.hold(index < scenes.length - 1 ? FRAME_MS : LAST_MS);
  }
  return recording.end();
}

function paintScene(canvas, board, title, { words, cells }) {
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  write(context, style, "600 22px system-ui, sans-serif", title, GAP, 38);
  paint(context, board, cells, { left: GAP, top: HEAD, side: BOARD });
  write(context, style, "20px system-ui, sans-serif", words, GAP, HEAD + BOARD + 32);
}

class Recording {
  constructor(canvas) {
    const [type] = FORMAT;
    this.canvas = canvas;
    this.parts = [];
    this.stream = canvas.captureStream();
    this.recorder = new MediaRecorder(this.stream, {
      mimeType: type,
      videoBitsPerSecond: 2_000_000
    });
    this.recorder.ondataavailable = ({ data }) => this.parts.push(data);
    this.stopped = new Promise((resolve) => {
      this.recorder.onstop = resolve;
    });
    this.recorder.start();
  }

  /**
   * Shows what is on the canvas for a while. It is drawn again and again: a stream sends nothing
   * of a canvas at rest.
   */
  async hold(ms) {
    const end = performance.now() + ms;
    while (performance.now() < end) {
      this.canvas.getContext("2d").drawImage(this.canvas, 0, 0);
      await new Promise((resolve) => {
        setTimeout(resolve, BEAT_MS);
      });
    }
  }

  async end() {
    this.recorder.stop();
    await this.stopped;
    this.stream.getTracks().forEach((track) => track.stop());
    return new Blob(this.parts, { type: this.recorder.mimeType });
  }
}
