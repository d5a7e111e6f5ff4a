// A puzzle in the tokens of its model, encoded and checked as `puzzles` does.

import { kindOf } from "../kinds/index.js";
import { badPuzzle } from "../refusal.js";
import { MazeBoard } from "./maze.js";
import { SudokuBoard } from "./sudoku.js";

/**
 * The board of a puzzle in any notation that the page reads: its `grid` and `tokens`, encode(grid)
 * and decode(tokens), proves(tokens) whether an answer keeps every rule and every given, and
 * route(grid), null if an answer is no way. Throws a Refusal for a bad puzzle.
 */
export function readBoard(model, puzzle) {
  const kind = kindOf(model);
  const read = kind.read(puzzle);
  if (!read?.isSound) {
    const remedy = `send ${kind.rows} lines of ${kind.cols} cells`;
    throw badPuzzle(`this is not a board of ${model.name}`, remedy);
  }
  return kind.board === "maze" ? new MazeBoard(kind, read.grid) : new SudokuBoard(read.grid);
}
