// A board's label: the generator's answer, or one that a person draws.

import { getJson, Refusal } from "./api.js";
import { $ } from "./dom.js";
import { page } from "./page.js";

/** A fresh board from the generator, which knows its answer. */
export async function makeBoard() {
  const { model } = page;
  try {
    const wanted = new URLSearchParams({ kind: model.kind, difficulty: $("difficulty").value });
    const made = await getJson(`puzzle?${wanted}`);
    if (page.model !== model) return;
    page.editor.take(made.puzzle);
    showLabels(made);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    page.thinking.tell("bad", "No board", error.message);
  }
}

/**
 * Which ways there are to label the board: the generator's answer, where it made it, and one's
 * own.
 */
export function showLabels(made) {
  page.fresh = made;
  $("show-label").hidden = !made;
  $("draw-label").hidden = page.kind.isApart;
  $("draw-label").setAttribute("aria-pressed", "false");
}

export function showLabel() {
  const { grid } = page.kind.read(page.fresh.solution);
  page.thinking.forget();
  page.editor.draw(grid);
  page.thinking.tell("good", "The generator's answer", "Not the model's. It can go into the set.");
  page.drawn.offer(page.editor.question, { solution: grid, verified: true });
}

export function drawLabel() {
  const isDrawing = $("draw-label").getAttribute("aria-pressed") === "true";
  page.thinking.forget();
  page.drawn.offer(null, null);
  page.editor.drawAnswer(isDrawing ? null : page.editor.state.grid);
  $("draw-label").setAttribute("aria-pressed", `${!isDrawing}`);
  if (!isDrawing)
    page.thinking.tell("open", "Draw the answer", "Then add it to the set: it is checked first.");
}
