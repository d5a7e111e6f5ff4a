// The drawn set: puzzles with their answers, kept in this browser, and written as a file that
// `hrm-data import` reads.

import { Refusal, post } from "./api.js";
import { $, element } from "./dom.js";
import { isSame } from "./grids.js";
import { still } from "./painter.js";

const KEY = "hrm-edge-set";

export class DrawnSet {
  /** `onLoad(puzzle)` takes one back into the editor. */
  constructor(onLoad) {
    this.onLoad = onLoad;
    this.entries = stored();
    this.model = this.kind = this.candidate = null;
    $("add").onclick = () => this.#add();
    $("export").onclick = () => this.#export();
    $("remove-all").onclick = () =>
      this.#become(this.entries.filter((entry) => !this.#isOwn(entry)));
  }

  show(model, kind) {
    Object.assign(this, { model, kind, candidate: null });
    this.#draw();
  }

  /**
   * What the add button would add; an answer that is proven wrong is refused, as `hrm-data
   * import` would.
   */
  offer(puzzle, answer) {
    this.isProven = answer?.verified === true;
    const isSmaller =
      this.kind?.frames &&
      puzzle &&
      puzzle.length * puzzle[0].length < this.kind.rows * this.kind.cols;
    const isGood = answer && answer.verified !== false && !isSmaller;
    this.candidate = isGood ? { kind: this.model.kind, puzzle, solution: answer.solution } : null;
    const why = isSmaller
      ? "Only boards of the model's size go into a set."
      : "Only proven answers go into a set.";
    $("add-why").textContent = answer && !isGood ? why : "";
    this.#draw();
  }

  /** What no proof came with, as a drawing, the server judges first, as `hrm-data import` will. */
  async #add() {
    const { candidate, isProven } = this;
    if (!candidate) return;
    try {
      if (!isProven) await post("puzzle", candidate);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      if (this.candidate === candidate) $("add-why").textContent = error.message;
      return;
    }
    this.#become([...this.entries, candidate]);
  }

  #become(entries) {
    this.entries = entries;
    try {
      localStorage.setItem(KEY, JSON.stringify(entries));
    } catch {
      // a browser that keeps nothing: the set lasts as long as the page
    }
    this.#draw();
  }

  #draw() {
    const own = this.entries.filter((entry) => this.#isOwn(entry));
    const isThere = this.candidate && own.some((entry) => isSame(entry, this.candidate));
    $("add").disabled = !this.candidate || isThere;
    $("add").textContent = isThere ? "In the set" : "Add to the set";
    $("set-count").textContent = own.length ? `${own.length}` : "";
    $("set-empty").hidden = own.length > 0;
    $("set-filled").hidden = own.length === 0;
    $("set-summary").textContent =
      `${own.length} ${own.length === 1 ? "puzzle" : "puzzles"} for ${this.model.kind}`;
    $("set-command").textContent =
      `hrm-data import ${this.#file} ${this.model.kind} --out data/drawn`;
    $("set-list").replaceChildren(...own.map((entry, index) => this.#card(entry, index)));
  }

  #card(entry, index) {
    const { grid } = this.kind.read(entry.puzzle);
    const said = this.kind.isApart ? null : entry.solution;
    const name = `Puzzle ${index + 1}`;
    return element(
      "li",
      { class: "drawn" },
      still(this.kind.board, this.kind.picture(grid, said), `${name} with its answer`),
      element("span", { class: "name" }, name),
      element(
        "span",
        { class: "row" },
        element(
          "button",
          {
            type: "button",
            "aria-label": `Edit ${name}`,
            on: { click: () => this.onLoad(entry.puzzle) }
          },
          "Edit"
        ),
        element(
          "button",
          {
            type: "button",
            "aria-label": `Remove ${name}`,
            on: { click: () => this.#become(this.entries.filter((other) => other !== entry)) }
          },
          "Remove"
        )
      )
    );
  }

  #export() {
    const lines = this.entries
      .filter((entry) => this.#isOwn(entry))
      .map(({ puzzle, solution }) => JSON.stringify({ puzzle, solution }));
    const url = URL.createObjectURL(
      new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" })
    );
    element("a", { href: url, download: this.#file }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  #isOwn({ kind }) {
    return kind === this.model.kind;
  }

  get #file() {
    return `${this.model.kind}.ndjson`;
  }
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? [];
  } catch {
    return [];
  }
}
