// A picture of a grid: cells, and one line over them. A board is made of it; painter.js paints the
// pictures that are only looked at.

import { element, setAttribute, setText, svg } from "./dom.js";

/** The elements of a picture, made once for its size; `draw` changes only what differs. */
export class Picture {
  constructor(board, { cellRole = null } = {}) {
    this.cells = [];
    this.size = "";
    this.board = board;
    this.cellRole = cellRole;
    this.grid = element("div", { class: `board ${board}` });
    this.line = svg("path", { class: "way" });
    this.overlay = svg("svg", { class: "overlay", "aria-hidden": "true" }, this.line);
    this.node = element("div", { class: "picture" }, this.grid, this.overlay);
  }

  /**
   * `changed` cells flash; a second flash in a row needs another name, or the browser sees no new
   * animation.
   */
  draw({ rows, cols, cells, line }, { changed = new Set(), beat = 0 } = {}) {
    if (this.size !== `${rows}x${cols}`) this.#make(rows, cols);
    const flash = beat % 2 ? " changed-a" : " changed-b";
    cells.forEach(({ text, look }, index) => {
      setText(this.cells[index].firstChild, text);
      setAttribute(this.cells[index], "class", `cell ${look}${changed.has(index) ? flash : ""}`);
    });
    setAttribute(this.line, "d", line);
  }

  #make(rows, cols) {
    this.size = `${rows}x${cols}`;
    this.grid.style.setProperty("--rows", rows);
    this.grid.style.setProperty("--cols", cols);
    this.node.style.setProperty("--aspect", cols / (rows || 1));
    this.overlay.setAttribute("viewBox", `0 0 ${cols} ${rows}`);
    this.cells = Array.from({ length: rows * cols }, () =>
      element("div", { role: this.cellRole }, element("span"))
    );
    const lines = Array.from({ length: rows }, (_, row) =>
      this.cells.slice(row * cols, (row + 1) * cols)
    );
    const role = this.cellRole ? "row" : null;
    this.grid.replaceChildren(
      ...lines.map((line) => element("div", { class: "line", role }, ...line))
    );
  }
}
