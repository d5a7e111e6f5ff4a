// The puzzle as a person makes it: drawn, typed, pasted or taken from the samples. Knows nothing
// of solving.

import { Board } from "./board.js";
import { $ } from "./dom.js";
import { taskFields } from "./fields.js";
import { copied, gridOf, isSame, resized } from "./grids.js";
import { valueOf } from "./notation.js";
import { brushes, pad } from "./palette.js";

const MOST_UNDONE = 200;

export class Editor {
  /**
   * `onChange()` hears of every change by the person, `onUnread(value, isDrawn)` of what is not
   * sound.
   */
  constructor(kind, { onChange, onUnread, onAnswer }) {
    this.kind = kind;
    this.heard = { onChange, onUnread, onAnswer };
    this.state = {
      grid: gridOf(kind.rows, kind.cols, kind.open),
      task: "",
      shown: [],
      label: null
    };
    this.answer = null; // what a person draws as the answer, while they do
    this.undone = [];
    this.brush = kind.marks[0].value;
    const onPaint = kind.paints ? (cell, isFirst) => this.#paint(cell, isFirst) : null;
    this.board = new Board(kind, `${kind.title} board`, {
      onKey: (key, cell) => this.#key(key, cell),
      onPaint
    });
    const tools = kind.paints
      ? brushes(kind, (value) => {
          this.brush = value;
        })
      : pad(kind, (value) => this.#write(this.board.current, value));
    $("board").replaceChildren(this.board.node);
    this.fields = kind.isApart
      ? taskFields(kind, {
          onTask: (task) => this.#become({ ...this.state, task }),
          onResize: (rows, cols) =>
            this.#become({ ...this.state, grid: resized(this.state.grid, rows, cols, kind.open) })
        })
      : null;
    $("tools").replaceChildren(tools, ...(this.fields ? [this.fields.node] : []));
    $("shown").replaceChildren();
    this.#show();
  }

  /**
   * Takes a JSON value or a text in any notation; says whether it could be drawn without a doubt.
   */
  take(value) {
    const read = this.kind.read(typeof value === "string" ? valueOf(value) : value);
    if (read) this.#become({ ...this.state, shown: [], label: null, ...read });
    if (!read?.isSound) this.heard.onUnread(value, read !== null);
    return Boolean(read?.isSound);
  }

  clear() {
    const { grid } = this.state;
    this.#become({ ...this.state, grid: gridOf(grid.length, grid[0].length, this.kind.open) });
  }

  undo() {
    const before = this.undone.pop();
    if (before) this.#set(before);
  }

  get question() {
    return this.kind.question(this.state);
  }

  get text() {
    return this.kind.written(this.state);
  }

  /** Draws the question alone, or with an answer on it. */
  draw(answer = null, flash = {}, route = null) {
    this.isAnswered = answer !== null && answer !== this.answer;
    this.board.draw(
      this.kind.picture(this.state.grid, this.kind.isApart ? null : answer, route),
      flash
    );
  }

  /**
   * From now on the pointer and the keys write an answer over the question; with null, the
   * question again.
   */
  drawAnswer(answer) {
    this.answer = answer;
    if (answer) this.draw(answer);
  }

  /** To write over the model's answer takes it away, whatever is written. */
  #become(state) {
    const isNew = !isSame(state, this.state);
    if (isNew) this.undone = [...this.undone.slice(-MOST_UNDONE), this.state];
    if (isNew || this.isAnswered) this.#set(state);
  }

  #set(state) {
    this.state = state;
    this.answer = null;
    this.#show();
    this.heard.onChange();
  }

  #show() {
    this.board.absolve();
    this.draw();
    this.fields?.show(this.state);
  }

  #key(key, cell) {
    const mark = this.kind.marks.find(({ keys }) => keys.includes(key));
    if (mark) {
      const asked = this.answer ? this.state.grid.flat()[cell] : this.kind.open;
      const isOpen = !this.isAnswered && (this.answer ?? this.state.grid).flat()[cell] === asked;
      this.board.type(key, cell, isOpen, (place) => this.#write(place, mark.value));
    } else if (key === " ") this.#write(cell, this.brush);
    else return false;
    return true;
  }

  /**
   * A first touch on a cell that has the brush's mark already takes it away, and so do the cells
   * dragged over.
   */
  #paint(cell, isFirst) {
    const [row, col] = [Math.floor(cell / this.board.cols), cell % this.board.cols];
    if (this.answer) {
      if (isFirst)
        this.stroke =
          this.answer[row][col] === this.state.grid[row][col] ? this.brush : this.kind.open;
    } else if (isFirst)
      this.stroke = this.state.grid[row][col] === this.brush ? this.kind.open : this.brush;
    this.#write(cell, this.stroke);
  }

  #write(cell, value) {
    if (this.answer)
      return this.#writeAnswer(Math.floor(cell / this.board.cols), cell % this.board.cols, value);
    const grid = copied(this.state.grid);
    if (this.kind.marks.find((mark) => mark.value === value)?.once) {
      grid.forEach((line, row) => {
        grid[row] = line.map((old) => (old === value ? this.kind.open : old));
      });
    }
    grid[Math.floor(cell / this.board.cols)][cell % this.board.cols] = value;
    this.#become({ ...this.state, grid });
  }

  /** The open mark takes away what was drawn; any other draws. */
  #writeAnswer(row, col, value) {
    const [asked, answer] = [this.state.grid[row][col], copied(this.answer)];
    answer[row][col] = value === this.kind.open ? asked : this.kind.marked(asked, value);
    this.drawAnswer(answer);
    this.heard.onAnswer(answer);
  }
}
