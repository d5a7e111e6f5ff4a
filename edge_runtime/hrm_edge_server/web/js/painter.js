// Paints a picture of a grid on a canvas with the colors of the page: it draws the cells unseen,
// and copies their styles.

import { element } from "./dom.js";
import { Picture } from "./picture.js";

const LINE_SHARE = 0.26; // of a cell, as .way in board.css

export class Painter {
  constructor(board, parent) {
    this.picture = new Picture(board);
    this.stage = element("div", { class: "stage", "aria-hidden": "true" }, this.picture.node);
    parent.append(this.stage);
  }

  close() {
    this.stage.remove();
  }

  /** Paints into a square; a board that is not square is centerd in it. */
  paint(context, picture, { left, top, side }) {
    const { rows, cols, cells, line } = picture;
    if (!cells.length) return;
    this.picture.draw(picture);
    const size = side / Math.max(rows, cols);
    context.save();
    context.translate(left + (side - cols * size) / 2, top + (side - rows * size) / 2);
    context.fillStyle = getComputedStyle(this.picture.grid).backgroundColor;
    context.fillRect(0, 0, cols * size, rows * size);
    cells.forEach((cell, index) => this.#ground(context, index, squareAt(index, cols, size)));
    if (line) this.#way(context, line, size);
    cells.forEach((cell, index) => this.#sign(context, cell, index, squareAt(index, cols, size)));
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("color");
    context.strokeRect(0, 0, cols * size, rows * size);
    context.restore();
  }

  #ground(context, index, { x, y, size }) {
    const style = getComputedStyle(this.picture.cells[index]);
    context.fillStyle = style.backgroundColor;
    context.fillRect(x, y, size, size);
    const right = parseFloat(style.borderRightWidth);
    const bottom = parseFloat(style.borderBottomWidth);
    context.fillStyle = style.borderRightColor;
    context.fillRect(x + size - right, y, right, size);
    context.fillStyle = style.borderBottomColor;
    context.fillRect(x, y + size - bottom, size, bottom);
  }

  #way(context, line, size) {
    context.save();
    context.scale(size, size);
    context.strokeStyle = getComputedStyle(this.picture.line).stroke;
    context.lineWidth = LINE_SHARE;
    context.lineCap = context.lineJoin = "round";
    context.stroke(new Path2D(line));
    context.restore();
  }

  /**
   * A digit, or a badge with the first letter of a stop: its icon is a mask, which a canvas
   * cannot copy.
   */
  #sign(context, { text, label }, index, { x, y, size }) {
    const node = this.picture.cells[index];
    const badge = getComputedStyle(node.firstChild);
    const isBadge = badge.display === "grid";
    const words = isBadge ? text || label.charAt(0).toUpperCase() : text;
    if (!words || badge.opacity === "0") return;
    const [middle, center] = [x + size / 2, y + size / 2];
    if (isBadge) {
      context.fillStyle = badge.backgroundColor;
      context.beginPath();
      context.arc(middle, center, size * 0.38, 0, 2 * Math.PI);
      context.fill();
    }
    const style = getComputedStyle(node);
    context.fillStyle = isBadge ? "#fff" : style.color;
    const height = Math.round(size * (isBadge ? 0.44 : 0.54));
    context.font = `${style.fontWeight} ${height}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(words, middle, center + size * 0.03);
  }
}

const squareAt = (index, cols, size) => ({
  x: (index % cols) * size,
  y: Math.floor(index / cols) * size,
  size
});
