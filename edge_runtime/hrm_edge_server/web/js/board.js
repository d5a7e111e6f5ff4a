// A board to work on: one tab stop, arrow keys between cells, a pointer that draws, and a
// sentence at the cell at fault.

import { element, setAttribute } from "./dom.js";
import { Picture } from "./picture.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Board {
  /**
   * `onKey(key, cell)` says whether it used the key. `onPaint(cell, isFirst)` is called for every
   * cell a pressed pointer reaches; without it, a pointer only chooses a cell.
   */
  constructor(kind, label, { onKey, onPaint = null }) {
    this.picture = new Picture(kind.board, { cellRole: "gridcell" });
    this.current = 0;
    this.rows = this.cols = 0;
    this.onKey = onKey;
    this.bubble = element("p", { class: "bubble", role: "alert", hidden: "" });
    this.node = element(
      "div",
      { class: `board-frame${onPaint ? " paints" : ""}` },
      this.picture.node,
      this.bubble
    );
    this.picture.grid.setAttribute("role", "grid");
    this.picture.grid.setAttribute("aria-label", label);
    this.picture.grid.addEventListener("keydown", (event) => this.#key(event));
    this.picture.grid.addEventListener("focusin", (event) =>
      this.#choose(this.#indexOf(event.target))
    );
    this.#followPointer(onPaint);
  }

  draw(picture, flash = {}) {
    const isNew = this.rows !== picture.rows || this.cols !== picture.cols;
    const hadFocus = this.node.contains(document.activeElement);
    Object.assign(this, { rows: picture.rows, cols: picture.cols });
    this.picture.draw(picture, flash);
    this.picture.cells.forEach((cell, index) => {
      const place = `Row ${Math.floor(index / this.cols) + 1}, column ${(index % this.cols) + 1}`;
      setAttribute(cell, "aria-label", `${place}: ${picture.cells[index].label}`);
    });
    if (isNew) this.picture.cells.forEach((cell) => setAttribute(cell, "tabindex", "-1"));
    this.#choose(Math.min(this.current, this.rows * this.cols - 1));
    if (isNew && hadFocus) this.focus();
  }

  focus(cell = this.current) {
    this.#choose(cell);
    this.picture.cells[cell]?.focus();
  }

  /** Writes at a cell and goes on; Backspace erases, and on an open cell the one before it. */
  type(key, cell, isOpen, write) {
    const isBack = key === "Backspace";
    const place = isBack && isOpen ? Math.max(0, cell - 1) : cell;
    write(place);
    this.focus(isBack ? place : Math.min(this.rows * this.cols - 1, cell + 1));
  }

  /**
   * Shows a sentence at a cell, [row, column] from 1, or over the board where no cell is to
   * blame.
   */
  accuse(place, sentence) {
    this.absolve();
    const [row, col] = place ?? [1, 1];
    const cell = place ? this.picture.cells[(row - 1) * this.cols + col - 1] : undefined;
    cell?.setAttribute("aria-invalid", "true");
    this.bubble.textContent = sentence;
    this.bubble.hidden = !cell;
    this.bubble.classList.toggle("above", row > this.rows / 2);
    this.bubble.style.setProperty("--row", row > this.rows / 2 ? row - 1 : row);
    this.bubble.style.setProperty("--col", col - 0.5);
    this.bubble.style.setProperty("--rows", this.rows);
    this.bubble.style.setProperty("--cols", this.cols);
  }

  absolve() {
    this.bubble.hidden = true;
    this.picture.grid.querySelector("[aria-invalid]")?.removeAttribute("aria-invalid");
  }

  /** The cell `down` rows and `right` columns away, as far as the board reaches. */
  neighbor(cell, down, right) {
    const row = clamped(Math.floor(cell / this.cols) + down, this.rows);
    return row * this.cols + clamped((cell % this.cols) + right, this.cols);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cell = this.#indexOf(event.target);
    if (MOVES[event.key]) this.focus(this.neighbor(cell, ...MOVES[event.key]));
    else if (event.key === "Home") this.focus(this.neighbor(cell, 0, -this.cols));
    else if (event.key === "End") this.focus(this.neighbor(cell, 0, this.cols));
    else if (!this.onKey(event.key, cell)) return;
    event.preventDefault();
  }

  #choose(cell) {
    if (cell < 0) return;
    this.picture.cells[this.current]?.setAttribute("tabindex", "-1");
    this.picture.cells[cell]?.setAttribute("tabindex", "0");
    this.current = cell;
  }

  #indexOf(target) {
    return this.picture.cells.indexOf(target.closest(".cell"));
  }

  #followPointer(onPaint) {
    const grid = this.picture.grid;
    grid.addEventListener("pointerdown", (event) => {
      const cell = this.#cellAt(event);
      if (event.button !== 0 || cell === null) return;
      event.preventDefault(); // no text selection; the focus is set by hand
      this.focus(cell);
      if (!onPaint) return;
      grid.setPointerCapture(event.pointerId);
      onPaint(cell, true);
    });
    grid.addEventListener("pointermove", (event) => {
      const cell = onPaint && grid.hasPointerCapture(event.pointerId) ? this.#cellAt(event) : null;
      if (cell === null || cell === this.current) return;
      this.focus(cell);
      onPaint(cell, false);
    });
  }

  #cellAt({ clientX, clientY }) {
    const { left, top, width, height } = this.picture.grid.getBoundingClientRect();
    const [row, col] = [
      ((clientY - top) / height) * this.rows,
      ((clientX - left) / width) * this.cols
    ].map(Math.floor);
    return row >= 0 && row < this.rows && col >= 0 && col < this.cols
      ? row * this.cols + col
      : null;
  }
}

const clamped = (number, count) => Math.max(0, Math.min(count - 1, number));
