// Mazes.

import { cellsOf, lineThrough } from "../grids.js";
import { readCells, readFramed, readObject } from "../notation.js";
import { fromLine, toLine } from "./line.js";
import { measured } from "./measured.js";
import { sizeOf } from "./size.js";
import { named, spareIn } from "./spare.js";

const [OPEN, WALL, START, GOAL, PATH] = [0, 1, 2, 3, 4];
const CHARACTERS = { "#": WALL, "█": WALL, " ": OPEN, ".": OPEN, S: START, G: GOAL, o: PATH };
const WRITTEN = [".", "#", "S", "G", "o"];
const LOOKS = ["open", "wall", "start", "goal", "path"];
const MARKS = { path: () => PATH, start: () => START, goal: () => GOAL, end: () => GOAL };

export function maze(model) {
  const size = sizeOf(model);
  const form = { ...size, numbers: [OPEN, WALL, START, GOAL, PATH], open: OPEN };
  return {
    title: "Maze",
    board: "maze",
    ...size,
    open: OPEN,
    paints: true,
    isApart: false,
    marks: [
      { value: WALL, name: "Wall", keys: ["#", "w", "1"] },
      { value: OPEN, name: "Open", keys: [".", "0", "Delete", "Backspace"] },
      { value: START, name: "Start", keys: ["s", "S"], once: true },
      { value: GOAL, name: "Goal", keys: ["g", "G"], once: true }
    ],
    frames: true,
    read: (value) =>
      readFramed(value, form, (sized) =>
        Array.isArray(value) || typeof value === "string"
          ? readCells(value, { ...sized, characters: CHARACTERS, padsLines: true })
          : readObject(value, { ...sized, marks: MARKS })
      ),
    written,
    toLine: (state) => toLine(written(state), size),
    fromLine,
    question: ({ grid }) => grid,
    picture,
    goal: "Find a shortest way from the start to the goal.",
    marked: (asked) => (asked === OPEN ? PATH : asked),
    told: ({ cost, optimum }) => {
      if (cost === optimum) return `${cost} moves from start to goal, and no way is shorter.`;
      const said = cost ? `Its way has ${cost} moves` : "Its marks lead nowhere";
      return `${said}; the shortest has ${optimum}.`;
    },
    measured: (route) => measured(route, (moves) => `${moves} moves`, "the fewest possible"),
    spare: ({ solution, route }) => {
      const cells = named(spareIn(solution, route, isMark));
      return `Its way is a shortest one, but it marks cells beside it: ${cells}.`;
    },
    help: "Keys: arrows to move, space to draw, # . S G to write, Enter to solve."
  };
}

const isMark = (value) => value === PATH;
const written = ({ grid }) =>
  grid.map((row) => row.map((value) => WRITTEN[value]).join("")).join("\n");

/** With a route, a mark beside the way is crossed out. */
function picture(asked, said, route = null) {
  const questions = cellsOf(asked);
  const spare = new Set(
    (route ? spareIn(said, route, isMark) : []).map(([row, col]) => row * asked[0].length + col)
  );
  const cells = cellsOf(said ?? asked).map((value, cell) => {
    const isKept = value === questions[cell] || (value === PATH && questions[cell] === OPEN);
    const look = LOOKS[isKept ? value : questions[cell]];
    if (spare.has(cell)) return { text: "✗", look: `${look} broken`, label: `${look}, not needed` };
    return {
      text: isKept ? "" : "✗",
      look: isKept ? look : `${look} broken`,
      label: isKept ? look : `${look}, not kept`
    };
  });
  const isOnWay = (value) => value >= START;
  const hasWay = cellsOf(said ?? asked).some(isMark);
  return {
    rows: asked.length,
    cols: asked[0].length,
    cells,
    line: hasWay ? lineThrough(said ?? asked, isOnWay) : ""
  };
}
