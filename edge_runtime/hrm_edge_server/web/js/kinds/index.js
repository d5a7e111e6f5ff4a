// What the page knows of each kind of puzzle. A kind is a plain object:
//
//   title, board          its name, and the class of its boards in board.css
//   rows, cols, open      the size of a new board and the value of an open cell
//   marks                 what can stand in a cell: {value, name, keys, sign}; `once` where it
//                         stands only once
//   paints                whether a pointer draws with the chosen mark, or chooses a cell to
//                         write into
//   read(value)           {grid, isSound, ...} of a JSON value or a text; null where nothing can
//                         be drawn
//   written(state)        the puzzle as text, for people
//   toLine, fromLine      the puzzle in one line of an address, and what read() takes of such a
//                         line
//   question(state)       the puzzle as JSON, for the server, whose answer comes back as a grid
//                         of the same numbers
//   picture(asked, said)  what to draw: {rows, cols, cells: [{text, look, label}], line}; `said`
//                         is an answer or null
//   frames                whether its models solve smaller boards too
//   isApart               whether an answer has a board of its own
//   goal, help            what is asked, and which keys there are, in a sentence each
//   proven, disproven     what a verdict means, in a sentence; or told(route) where the answer is
//                         a way
//   unproven              why its answers have no proof, in a sentence
//   measured(route)       the length or cost of a way, as a figure
//   marked(asked, value)  what drawing an answer puts over a cell of the question

import { arc } from "./arc.js";
import { logistics } from "./logistics.js";
import { maze } from "./maze.js";
import { own } from "./own.js";
import { sudoku } from "./sudoku.js";

const FAMILIES = new Map(Object.entries({ sudoku, maze, logistics, arc }));
const GROUPS = new Map(
  Object.entries({ sudoku: "Sudoku", maze: "Mazes", logistics: "Cities", arc: "ARC" })
);

const familyOf = (model) => model.kind.split("-")[0];

/** The name of a model's group, for all kinds. */
export function groupOf(model) {
  return GROUPS.get(familyOf(model)) ?? "Other puzzles";
}

/** Whether a model solves the boards of a kind, of its own size or in a frame. */
export function solves(model, { kind, rows, cols }) {
  if (model.kind === kind) return true;
  const isSmaller = rows <= model.rows && cols <= model.cols;
  return familyOf(model) === familyOf({ kind }) && Boolean(kindOf(model)?.frames) && isSmaller;
}

/** The kind of a model: one of this page, or its legend's; null if it has none. */
export function kindOf(model) {
  const family = FAMILIES.get(familyOf(model));
  return family?.(model) ?? own(model);
}
