// Attempts side by side: a small picture of each, what became of it, and which one the board shows.

import { element, setAttribute, setText } from "./dom.js";
import { Still } from "./painter.js";

export class Attempts {
  constructor(node, kind, onChoose) {
    this.node = node;
    this.kind = kind;
    this.onChoose = onChoose;
    this.forget();
  }

  forget() {
    this.cards = new Map();
    this.node.replaceChildren();
    this.node.hidden = true;
  }

  /** Draws every attempt at that segment; a single one needs no picture beside the board. */
  draw(run, asked, chosen, segment) {
    this.node.hidden = run.attempts.size < 2;
    if (this.node.hidden) return;
    for (const [attempt, frames] of run.attempts) {
      const card = this.cards.get(attempt) ?? this.#add(attempt);
      const frame = run.frame(attempt, segment);
      card.picture.draw(this.kind.picture(asked, frame.solution));
      setText(card.said, wordsOf(frame, frames, run.answer));
      setAttribute(card.node, "class", `attempt${frame.verified ? " proven" : ""}`);
      setAttribute(card.node, "aria-pressed", `${attempt === chosen}`);
    }
  }

  #add(attempt) {
    const picture = new Still(this.kind.board);
    picture.node.setAttribute("aria-hidden", "true");
    const said = element("span", { class: "said" });
    const name = element("span", { class: "name" }, `Attempt ${this.cards.size + 1}`);
    const node = element(
      "button",
      { type: "button", on: { click: () => this.onChoose(attempt) } },
      picture.node,
      name,
      said
    );
    this.cards.set(attempt, { node, picture, said });
    this.node.append(node);
    return this.cards.get(attempt);
  }
}

/** Of a frame, and of the segment at which its attempt was first proven. */
function wordsOf(frame, frames, answer) {
  if (frame.verified) return `proven at ${frames.find(({ verified }) => verified).segment}`;
  const isOver = answer && frames.at(-1) === frame;
  const margin = frame.margin.toFixed(1).replace("-", "−");
  return isOver
    ? `ended at ${frame.segment}, margin ${margin}`
    : `segment ${frame.segment}, margin ${margin}`;
}
