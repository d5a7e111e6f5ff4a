// Paints pictures of grids on canvases with the colors of the page: it looks up the style of each
// look once, on cells out of sight.

import { element } from "./dom.js";
import { Picture } from "./picture.js";

const STAGE = 256; // pixels, the width of .stage in board.css
const LINE_SHARE = 0.26; // of a cell, as .way in board.css
const FEWEST = 6; // pixels of a cell that has room for its edges
const styles = new Map(); // by board and look
const stills = new WeakMap(); // by canvas

/** Paints into a square; a board that is not square is centered in it. */
export function paint(context, board, { rows, cols, cells, line }, { left, top, side }) {
  if (!cells.length) return;
  const size = side / Math.max(rows, cols);
  const place = (index) => {
    const [row, col] = [Math.floor(index / cols), index % cols];
    const [x, y] = [col, row].map((number) => Math.round(number * size));
    const [right, bottom] = [col + 1, row + 1].map((number) => Math.round(number * size));
    return { x, y, width: right - x, height: bottom - y, size, scale: side / STAGE };
  };
  const { paper, frame, way } = styleOf(board, "");
  context.save();
  context.translate(left + (side - cols * size) / 2, top + (side - rows * size) / 2);
  context.fillStyle = paper;
  context.fillRect(0, 0, cols * size, rows * size);
  cells.forEach(({ look }, index) => ground(context, styleOf(board, look), place(index)));
  if (line) stroke(context, line, way, size);
  cells.forEach((cell, index) => sign(context, cell, styleOf(board, cell.look), place(index)));
  const width = thickness(frame.width, side / STAGE);
  context.lineWidth = width;
  context.strokeStyle = frame.color;
  context.strokeRect(width / 2, width / 2, cols * size - width, rows * size - width);
  context.restore();
}

function ground(context, { paper, right, bottom }, { x, y, width, height, size, scale }) {
  context.fillStyle = paper;
  context.fillRect(x, y, width, height);
  if (size < FEWEST) return;
  const [wide, high] = [right, bottom].map((edge) => thickness(edge.width, scale));
  context.fillStyle = right.color;
  context.fillRect(x + width - wide, y, wide, height);
  context.fillStyle = bottom.color;
  context.fillRect(x, y + height - high, width, high);
}

function stroke(context, line, color, size) {
  context.save();
  context.scale(size, size);
  context.strokeStyle = color;
  context.lineWidth = LINE_SHARE;
  context.lineCap = context.lineJoin = "round";
  context.stroke(new Path2D(line));
  context.restore();
}

/**
 * A digit, or a badge with the first letter of a stop: its icon is a mask, which a canvas cannot
 * copy.
 */
function sign(context, { text, label }, style, { x, y, size }) {
  const words = style.badge ? text || label.charAt(0).toUpperCase() : text;
  if (!words || style.isUnseen) return;
  const [middle, center] = [x + size / 2, y + size / 2];
  if (style.badge) {
    context.fillStyle = style.badge;
    context.beginPath();
    context.arc(middle, center, size * 0.38, 0, 2 * Math.PI);
    context.fill();
  }
  context.fillStyle = style.badge ? "#fff" : style.ink;
  const height = Math.round(size * (style.badge ? 0.44 : style.share));
  context.font = `${style.weight} ${height}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(words, middle, center + size * 0.03);
}

const thickness = (width, scale) => width && Math.max(1, Math.round(width * scale));

function styleOf(board, look) {
  const key = `${board} ${look}`;
  if (!styles.has(key)) styles.set(key, measured(board, look));
  return styles.get(key);
}

/** The style of a board without a look, or of a look: of the first of four cells. */
function measured(board, look) {
  const picture = new Picture(board);
  const stage = element("div", { class: "stage", "aria-hidden": "true" }, picture.node);
  document.body.append(stage);
  picture.draw({ rows: 2, cols: 2, cells: Array(4).fill({ text: "", look }), line: "" });
  const [node] = picture.cells;
  const [grid, cell, span, line] = [picture.grid, node, node.firstChild, picture.line].map((one) =>
    getComputedStyle(one)
  );
  const gap = { width: parseFloat(grid.columnGap) || 0, color: grid.backgroundColor };
  const edge = (width, color) => (parseFloat(width) ? { width: parseFloat(width), color } : gap);
  const style = {
    paper: (look ? cell : grid).backgroundColor,
    frame: edge(grid.borderTopWidth, grid.borderTopColor),
    right: edge(cell.borderRightWidth, cell.borderRightColor),
    bottom: edge(cell.borderBottomWidth, cell.borderBottomColor),
    way: line.stroke,
    ink: cell.color,
    weight: cell.fontWeight,
    share: parseFloat(span.fontSize) / (STAGE / 2),
    badge: span.display === "grid" ? span.backgroundColor : "",
    isUnseen: span.opacity === "0"
  };
  stage.remove();
  return style;
}

/** A picture that is only looked at: a canvas, painted while it is on the screen. */
export class Still {
  constructor(board) {
    this.board = board;
    this.isSeen = false;
    this.node = element("canvas", { class: "still" });
    stills.set(this.node, this);
    observer.observe(this.node);
  }

  draw(picture) {
    this.picture = picture;
    this.node.style.setProperty("--aspect", picture.cols / (picture.rows || 1));
    this.paint();
  }

  paint() {
    const { rows, cols } = this.picture;
    const width = this.isSeen ? Math.round(this.node.clientWidth * devicePixelRatio) : 0;
    const height = Math.round((width * rows) / cols) || 0;
    Object.assign(this.node, { width, height });
    const side = Math.max(width, height);
    const place = { left: (width - side) / 2, top: (height - side) / 2, side };
    if (width) paint(this.node.getContext("2d"), this.board, this.picture, place);
  }
}

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const still = stills.get(target);
      still.isSeen = isIntersecting;
      still.paint();
    }
  },
  { rootMargin: "1000px" } // a little ahead of those who scroll
);

/** A still with a sentence for those who cannot see it, or none where it is said beside it. */
export function still(board, picture, label) {
  const made = new Still(board);
  made.draw(picture);
  const words = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  for (const [name, value] of Object.entries(words)) made.node.setAttribute(name, value);
  return made.node;
}

/** Paints what is on the screen again: the colors of the page have changed. */
export function repaint() {
  styles.clear();
  for (const node of document.querySelectorAll("canvas.still")) stills.get(node).paint();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
