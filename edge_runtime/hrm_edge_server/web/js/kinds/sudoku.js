// Sudoku of 4x4, 6x6 and 9x9: digits, 0 where a cell is open.

import { cellsOf } from "../grids.js";
import { readCells } from "../notation.js";
import { sizeOf } from "./size.js";

const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3] };
const SIDES = [4, 6, 9, 12, 16, 25];
const SYMBOLS = "123456789ABCDEFGHIJKLMNOP";
const BLANKS = ".0*_-";
const FRAME = /[|+=, \t\u2500-\u257f]/g;

export function sudoku(model) {
  const side = sizeOf(model).rows;
  const digits = Array.from({ length: side }, (_, index) => index + 1);
  const board = { side, digits, boxes: BOXES[side] };
  return board.boxes
    ? {
        title: "Sudoku",
        board: "sudoku",
        rows: side,
        cols: side,
        open: 0,
        paints: false,
        isApart: false,
        marks: [
          ...digits.map((digit) => ({
            value: digit,
            name: `${digit}`,
            keys: [`${digit}`],
            sign: `${digit}`
          })),
          { value: 0, name: "Erase", keys: ["0", ".", " ", "Delete", "Backspace"], sign: "⌫" }
        ],
        read: (value) => read(board, value),
        written: ({ grid }) => linesOf(grid).join("\n"),
        toLine: ({ grid }) => linesOf(grid).join(""),
        fromLine: (line) => line,
        question: ({ grid }) => grid,
        picture: (asked, said) => picture(board, asked, said),
        goal: `Fill the board: every row, column and box holds each of 1 to ${side} once.`,
        marked: (asked, value) => asked || value,
        proven: "Every row, column and box holds each digit once, and every given is kept.",
        disproven: "The model's last answer breaks a rule where it is red, so it is no solution.",
        help: "Keys: digits, arrows to move, Enter to solve. Paste a puzzle anywhere on the page."
      }
    : null;
}

const linesOf = (grid) => grid.map((row) => row.map((digit) => digit || ".").join(""));

// Reading

/** The side of a Sudoku of any size, as text or lists of marks or numbers; undefined for others. */
export function sideOf(value) {
  const rows = [value].flat(2).map((cell) => cell ?? ".");
  const lines = rows.join("\n").split("\n");
  const filled = lines.filter((line) => /[\w.]/.test(line)).join("");
  const words = rows.join(" ").trim().split(/\s+/);
  return SIDES.find((side) => {
    const marks = [...BLANKS, " ", ...SYMBOLS.slice(0, side)];
    const isCell = (mark) => marks.includes(mark.toUpperCase()) || (mark > 0 && mark <= side);
    const isBoard = (cells) => cells.length === side ** 2 && cells.every(isCell);
    return [words, [...filled], [...filled.replace(FRAME, "")]].some(isBoard);
  });
}

function read(board, value) {
  if (typeof value === "string") return fromText(board, value);
  if (!Array.isArray(value)) return null;
  if (value.every((line) => typeof line === "string")) return fromText(board, value.join("\n"));
  const cells = value.flat().map((cell) => cell ?? 0);
  return cells.length === board.side ** 2 ? fromCells(board, cells) : null;
}

function fromCells({ side, digits }, cells) {
  const rows = Array.from({ length: side }, (_, row) => cells.slice(row * side, (row + 1) * side));
  const characters = Object.fromEntries([
    ...[...BLANKS, " "].map((blank) => [blank, 0]),
    ...digits.map((d) => [`${d}`, d])
  ]);
  return readCells(rows, { rows: side, cols: side, characters, numbers: [0, ...digits], open: 0 });
}

/**
 * Frames are dropped; a row of dashes may be a frame or a row of blanks, and spaces may be
 * blanks.
 */
function fromText(board, text) {
  const lines = text
    .split(/\r?\n/)
    .filter((line) => !/^\s*[#[]/.test(line))
    .map((line) => line.replace(FRAME, ""));
  const isDashes = (line) => /^-+$/.test(line);
  const filled = lines.filter((line) => line);
  const readings = [
    filled.filter((line) => !isDashes(line) || filled.length === 1),
    filled.filter((line) => !isDashes(line) || line.length === board.side),
    /^[ 1-9]*$/.test(text) ? [text] : []
  ];
  const cells = readings
    .map((reading) => [...reading.join("")])
    .find((found) => found.length === board.side ** 2);
  return cells ? fromCells(board, cells) : null;
}

// Drawing

function picture(board, asked, said) {
  const shown = said ?? asked;
  const clashing = clashes(shown);
  const cells = cellsOf(shown).map((value, cell) => {
    const [row, col] = [Math.floor(cell / board.side), cell % board.side];
    const isGiven = asked[row][col] === value && value !== 0;
    const role = value === 0 ? "open" : isGiven ? "given" : "answer";
    const look = `${role} ${edges(board, row, col)}${clashing.has(cell) ? " broken" : ""}`;
    return { text: value ? `${value}` : "", look, label: value ? `${value}, ${role}` : "open" };
  });
  return { rows: board.side, cols: board.side, cells, line: "" };
}

function edges({ side, boxes: [boxRows, boxCols] }, row, col) {
  const isRight = (col + 1) % boxCols === 0 && col + 1 < side;
  const isBottom = (row + 1) % boxRows === 0 && row + 1 < side;
  return `${isRight ? "box-right " : ""}${isBottom ? "box-bottom" : ""}`;
}

/** The cells whose digit stands twice in a row, column or box. */
export function clashes(grid) {
  const side = grid.length;
  const [boxRows, boxCols] = BOXES[side];
  const seen = new Map();
  cellsOf(grid).forEach((value, cell) => {
    if (!value) return;
    const [row, col] = [Math.floor(cell / side), cell % side];
    const box = `${Math.floor(row / boxRows)}/${Math.floor(col / boxCols)}`;
    for (const unit of [`row ${row}`, `col ${col}`, `box ${box}`].map(
      (name) => `${name} ${value}`
    )) {
      seen.set(unit, [...(seen.get(unit) ?? []), cell]);
    }
  });
  return new Set([...seen.values()].filter((cells) => cells.length > 1).flat());
}
