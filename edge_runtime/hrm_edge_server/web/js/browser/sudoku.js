// Sudoku in tokens: 1 for an open cell, digit + 1 for a digit.

import { cellsOf } from "../grids.js";
import { clashes } from "../kinds/sudoku.js";
import { badPuzzle } from "../refusal.js";

const OPEN = 1;

export class SudokuBoard {
  constructor(grid) {
    this.grid = grid;
    this.side = grid.length;
    this.tokens = this.encode(grid);
    const [, second] = [...clashes(grid)].sort((one, other) => one - other);
    if (second === undefined) return;
    const cell = [Math.floor(second / this.side) + 1, (second % this.side) + 1];
    const message = "a digit is given twice in a row, column or box";
    throw badPuzzle(message, "change or clear one of the two", cell);
  }

  encode(grid) {
    return cellsOf(grid).map((digit) => digit + OPEN);
  }

  decode(tokens) {
    const digits = Array.from(tokens, (token) => Math.max(0, token - OPEN));
    return this.grid.map((_, row) => digits.slice(row * this.side, (row + 1) * this.side));
  }

  proves(answer) {
    const isKept = (token, cell) => token === OPEN || token === answer[cell];
    const grid = this.decode(answer);
    const isFull = cellsOf(grid).every((digit) => digit > 0);
    return isFull && this.tokens.every(isKept) && clashes(grid).size === 0;
  }

  route() {
    return null;
  }
}
