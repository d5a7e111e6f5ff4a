// Mazes in tokens: 1 wall, 2 open, 3 start, 4 goal, 5 path. A smaller maze is in the upper left
// corner, among walls.

import { cellsOf, resized } from "../grids.js";
import { badPuzzle } from "../refusal.js";

const [WALL, OPEN, START, GOAL, PATH] = [1, 2, 3, 4, 5];
const TOKENS = [OPEN, WALL, START, GOAL, PATH]; // of each value of a grid
const VALUES = [0, 1, 0, 2, 3, 4]; // of each token

export class MazeBoard {
  constructor({ rows, cols }, grid) {
    Object.assign(this, { rows, cols, grid });
    this.tokens = this.encode(grid);
    this.start = this.#only(START, "start", "S");
    this.goal = this.#only(GOAL, "goal", "G");
    this.optimum = this.#movesToGoal((cell) => this.tokens[cell] !== WALL)[this.start];
    if (this.optimum === Infinity)
      throw badPuzzle("S and G are not connected", "open a wall between them");
    const marked = this.tokens;
    this.tokens = marked.map((token) => (token === PATH ? OPEN : token));
    if (marked.includes(PATH) && !this.proves(marked)) {
      const message = "the cells marked o are not a shortest path";
      throw badPuzzle(message, "send the maze without marks");
    }
    this.tokens = marked;
  }

  encode(grid) {
    const whole = resized(grid, this.rows, this.cols, VALUES[WALL]);
    return cellsOf(whole).map((value) => TOKENS[value]);
  }

  decode(tokens) {
    return this.grid.map((line, row) =>
      line.map((_, col) => VALUES[tokens[row * this.cols + col]])
    );
  }

  /**
   * Whether only open cells are marked, and the marks are a shortest path: as many as it needs,
   * and a path leads over them.
   */
  proves(answer) {
    const isKept = (token, cell) =>
      token === answer[cell] || (token === OPEN && answer[cell] === PATH);
    if (!this.tokens.every(isKept)) return false;
    const numMarked = answer.filter((token) => token === PATH).length;
    const moves = this.#movesToGoal((cell) => answer[cell] >= START);
    return numMarked + 1 === this.optimum && moves[this.start] === this.optimum;
  }

  /** The way over the marks of an answer, as a server tells it. */
  route(grid) {
    const answer = this.encode(grid);
    const isMark = (cell) => this.tokens[cell] === OPEN && answer[cell] === PATH;
    const moves = this.#movesToGoal((cell) => isMark(cell) || this.tokens[cell] >= START);
    const at = (cell) => [Math.floor(cell / this.cols), cell % this.cols];
    const told = { start: at(this.start), legs: [], cost: null, optimum: this.optimum };
    if (moves[this.start] === Infinity) return told;
    const cells = [];
    for (let cell = this.start; cell !== this.goal; cells.push(at(cell))) {
      const left = moves[cell] - 1;
      cell = this.#near(cell).find((near) => moves[near] === left);
    }
    const cost = cells.length;
    return { ...told, legs: [{ to: cells.at(-1), cost, cells }], cost };
  }

  #only(token, name, letter) {
    const [cell, second] = [...this.tokens.keys()].filter((one) => this.tokens[one] === token);
    if (cell === undefined)
      throw badPuzzle(`the maze has no ${name}`, `mark one open cell with ${letter}`);
    if (second === undefined) return cell;
    const place = [Math.floor(second / this.cols) + 1, (second % this.cols) + 1];
    throw badPuzzle(`the maze has a second ${letter}`, `keep one ${letter}`, place);
  }

  /** How many moves each cell is from the goal over free cells; Infinity if none lead there. */
  #movesToGoal(isFree) {
    const moves = Array(this.rows * this.cols).fill(Infinity);
    moves[this.goal] = 0;
    const reached = [this.goal];
    for (const cell of reached) {
      const found = this.#near(cell).filter((near) => isFree(near) && moves[near] === Infinity);
      for (const near of found) moves[near] = moves[cell] + 1;
      reached.push(...found);
    }
    return moves;
  }

  /** The cells around a cell, in reading order. */
  #near(cell) {
    const col = cell % this.cols;
    return [
      ...(cell >= this.cols ? [cell - this.cols] : []),
      ...(col > 0 ? [cell - 1] : []),
      ...(col < this.cols - 1 ? [cell + 1] : []),
      ...(cell < this.cols * (this.rows - 1) ? [cell + this.cols] : [])
    ];
  }
}
