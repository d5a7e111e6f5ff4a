// ARC: grids of the colors 0 to 9, at most as large as the model's canvas, and the name of their
// task.

import { cellsOf } from "../grids.js";
import { sizeOf } from "./size.js";

const COLORS = [
  "black",
  "blue",
  "red",
  "green",
  "yellow",
  "gray",
  "magenta",
  "orange",
  "sky blue",
  "maroon"
];
const NAME_KEYS = ["task", "task_id", "id", "name"];
const FIRST_SIDE = 3;
const LARGEST = 30; // the longest side that ARC allows

export function arc(model) {
  const most = sizeOf(model).rows;
  const side = Math.min(FIRST_SIDE, most);
  return {
    title: "ARC",
    board: "arc",
    rows: side,
    cols: side,
    most,
    open: 0,
    paints: true,
    isApart: true,
    marks: COLORS.map((name, value) => ({
      value,
      name,
      keys: value ? [`${value}`] : ["0", ".", "Delete", "Backspace"]
    })),
    read: (value) => read(value, most),
    written: (state) => JSON.stringify(question(state)),
    toLine,
    fromLine,
    question,
    picture,
    goal: "Find what changes from left to right, and do the same to the board.",
    unproven: "Nobody can prove an ARC answer: what a task asks for is written nowhere.",
    help: "Keys: arrows to move, 0 to 9 to color, space to paint, Enter to solve."
  };
}

const question = ({ grid, task }) => ({ task, input: grid });

/** A task and its rows, as in 0520fde7:1050110/0100501. */
const toLine = ({ grid, task }) => `${task}:${grid.map((row) => row.join("")).join("/")}`;

function fromLine(line) {
  const end = line.lastIndexOf(":");
  return { task: line.slice(0, Math.max(0, end)), input: line.slice(end + 1).split("/") };
}

/**
 * A question, a whole task (whose demonstrations are shown), or rows alone, which leave the name
 * of the task as it is.
 */
function read(value, most) {
  const isObject = typeof value === "object" && !Array.isArray(value);
  const asked = isObject ? (value.input ?? value.test?.[value.index ?? 0]?.input) : value;
  const found = rowsOf(asked, most);
  if (!found) return null;
  const named = isObject
    ? (NAME_KEYS.map((key) => value[key]).find((name) => typeof name === "string") ?? "")
    : null;
  const pairs = isObject && Array.isArray(value.train) ? value.train : [];
  const shown = pairs.map((pair) => ({
    input: rowsOf(pair?.input, LARGEST)?.grid,
    output: rowsOf(pair?.output, LARGEST)?.grid
  }));
  const label = isObject
    ? (rowsOf(value.test?.[value.index ?? 0]?.output, LARGEST)?.grid ?? null)
    : null;
  return {
    ...found,
    label,
    ...(named === null ? {} : { task: named }),
    shown: shown.filter(({ input, output }) => input && output)
  };
}

function rowsOf(value, most) {
  const lines =
    typeof value === "string" ? value.split(/\r?\n/).filter((line) => line.trim()) : value;
  if (!Array.isArray(lines)) return null;
  const rows = lines.map((line) =>
    typeof line === "string" ? [...line.replace(/[ ,\t]/g, "")] : line
  );
  const cols = rows[0]?.length;
  const isDrawable =
    rows.every((row) => Array.isArray(row) && row.length === cols) &&
    rows.length <= most &&
    cols <= most;
  if (!isDrawable || !cols) return null;
  const isColor = (cell) => /^[0-9]$/.test(`${cell}`);
  const grid = rows.map((row) => row.map((cell) => (isColor(cell) ? Number(cell) : 0)));
  return { grid, isSound: rows.flat().every(isColor) };
}

function picture(asked, said) {
  const grid = said ?? asked;
  const cells = cellsOf(grid).map((value) => ({
    text: `${value}`,
    look: `color-${value}`,
    label: COLORS[value]
  }));
  return { rows: grid.length, cols: grid[0]?.length ?? 0, cells, line: "" };
}
