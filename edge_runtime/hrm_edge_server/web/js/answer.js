// An answer with a board of its own (ARC): the model's, with the author's beside it; or one that
// a person draws for the set.

import { Board } from "./board.js";
import { element } from "./dom.js";
import { copied, gridOf, resized } from "./grids.js";
import { sizeFields } from "./fields.js";
import { Picture } from "./picture.js";

export class Answer {
  /** `brush()` tells what a pointer paints; `onDraw()` hears of every change by the person. */
  constructor(kind, brush, onDraw) {
    Object.assign(this, { kind, brush, onDraw });
    this.board = new Board(kind, "Answer board", {
      onKey: (key, cell) => this.#key(key, cell),
      onPaint: (cell) => this.#write(cell, this.brush())
    });
    this.size = sizeFields(kind.most, (rows, cols) =>
      this.#draws(resized(this.grid, rows, cols, kind.open))
    );
    this.title = element("h2", {});
    this.author = element("figure", { class: "author", hidden: "" });
    this.node = element(
      "div",
      { class: "answer-desk" },
      element(
        "div",
        { class: "row" },
        this.title,
        element("span", { class: "push" }),
        this.size.node
      ),
      element("div", { class: "answers" }, this.board.node, this.author)
    );
    this.isDrawn = false;
    this.show(gridOf(kind.rows, kind.cols, kind.open));
  }

  /** The model's answer; no rows where it is no grid at all. */
  show(grid, flash = {}) {
    this.isDrawn = false;
    this.#become(
      grid.length ? grid : [[this.kind.open]],
      grid.length ? "The model's answer" : "The model's answer is no grid",
      flash
    );
  }

  /** Shows the author's answer beside this one, and frames in both the cells that differ. */
  compare(label, flash = {}) {
    const { kind, grid } = this;
    const author = new Picture(kind.board);
    author.node.setAttribute("aria-hidden", "true");
    author.draw(framed(kind.picture(label, null), label, grid));
    this.board.draw(framed(kind.picture(grid, null), grid, label), flash);
    this.author.replaceChildren(
      author.node,
      element("figcaption", { class: "quiet" }, "The author's answer")
    );
    this.author.hidden = false;
  }

  /** A fresh sheet as large as the question, unless a person has drawn on the old one. */
  forget(question) {
    if (!this.isDrawn)
      this.#become(gridOf(question.length, question[0].length, this.kind.open), "Answer");
  }

  #draws(grid) {
    this.isDrawn = true;
    this.#become(grid, "Your answer");
    this.onDraw();
  }

  #become(grid, title, flash = {}) {
    this.grid = grid;
    this.title.textContent = title;
    this.author.hidden = true;
    this.size.show(grid.length, grid[0].length);
    this.board.draw(this.kind.picture(grid, null), flash);
  }

  #key(key, cell) {
    const mark = this.kind.marks.find(({ keys }) => keys.includes(key));
    if (mark) {
      const isOpen = this.grid.flat()[cell] === this.kind.open;
      this.board.type(key, cell, isOpen, (place) => this.#write(place, mark.value));
    } else if (key === " ") this.#write(cell, this.brush());
    else return false;
    return true;
  }

  #write(cell, value) {
    const grid = copied(this.grid);
    grid[Math.floor(cell / this.board.cols)][cell % this.board.cols] = value;
    this.#draws(grid);
  }
}

/**
 * The picture of a grid with a frame around each cell that another grid lacks or has in another
 * color.
 */
function framed(picture, grid, other) {
  const cells = picture.cells.map((cell, index) => {
    const row = Math.floor(index / picture.cols);
    const col = index % picture.cols;
    if (other[row]?.[col] === grid[row][col]) return cell;
    return { ...cell, look: `${cell.look} differs`, label: `${cell.label}, differs` };
  });
  return { ...picture, cells };
}
