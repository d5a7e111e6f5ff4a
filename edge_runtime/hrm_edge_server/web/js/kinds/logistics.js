// Cities: 0 building; 1, 2 and 4 what a road costs; 5 depot, 6 customer; 11, 12 and 14 roads on
// the tour.

import { cellsOf, lineThrough } from "../grids.js";
import { readCells, readFramed, readObject } from "../notation.js";
import { fromLine, toLine } from "./line.js";
import { measured } from "./measured.js";
import { sizeOf } from "./size.js";
import { named, spareIn } from "./spare.js";

const [BUILDING, ROAD, BUSY, JAMMED, DEPOT, CUSTOMER, ON_TOUR] = [0, 1, 2, 4, 5, 6, 10];
const NAMES = {
  [BUILDING]: "building",
  [ROAD]: "road",
  [BUSY]: "busy road",
  [JAMMED]: "jammed road",
  [DEPOT]: "depot",
  [CUSTOMER]: "customer"
};
const LOOKS = {
  [BUILDING]: "building",
  [ROAD]: "road",
  [BUSY]: "road busy",
  [JAMMED]: "road jammed",
  [DEPOT]: "road depot",
  [CUSTOMER]: "road customer"
};
const WRITTEN = { 0: "#", 1: ".", 2: "2", 4: "4", 5: "D", 6: "C", 11: "o", 12: "t", 14: "f" };
const CUSTOMERS = {
  easy: "1 to 2 customers",
  medium: "3 to 5 customers",
  hard: "6 to 8 customers"
};
const CUSTOMERS_SMALL = {
  easy: "1 customer",
  medium: "2 to 3 customers",
  hard: "4 to 5 customers"
};
const MARKS = {
  tour: (road) => (road % ON_TOUR) + ON_TOUR,
  depot: () => DEPOT,
  customers: () => CUSTOMER
};

export function logistics(model) {
  const size = sizeOf(model);
  const form = { ...size, numbers: Object.keys(WRITTEN).map(Number), open: ROAD };
  const characters = Object.fromEntries(
    Object.entries(WRITTEN).map(([value, sign]) => [sign, Number(value)])
  );
  return {
    title: "City",
    board: "city",
    ...size,
    open: ROAD,
    paints: true,
    isApart: false,
    marks: [
      { value: BUILDING, name: "Building", keys: ["#", "b", "0"] },
      { value: ROAD, name: "Road", keys: [".", "1", "Delete", "Backspace"] },
      { value: BUSY, name: "Busy, 2", keys: ["2"], sign: "2" },
      { value: JAMMED, name: "Jammed, 4", keys: ["4"], sign: "4" },
      { value: DEPOT, name: "Depot", keys: ["d", "D"], once: true },
      { value: CUSTOMER, name: "Customer", keys: ["c", "C"] }
    ],
    frames: true,
    read: (value) =>
      readFramed(value, form, (sized) =>
        Array.isArray(value) || typeof value === "string"
          ? readCells(value, { ...sized, characters })
          : readObject(value, { ...sized, marks: MARKS })
      ),
    written,
    toLine: (state) => toLine(written(state), size),
    fromLine,
    question: ({ grid }) => grid,
    picture,
    goal:
      "Drive from the depot to every customer and back for the least cost. " +
      "A road costs 1, a busy one 2, a jammed one 4.",
    marked: (asked) => ([ROAD, BUSY, JAMMED].includes(asked) ? asked + ON_TOUR : asked),
    told: ({ cost, optimum }) => {
      if (cost === optimum) return `The tour costs ${cost}, and none is cheaper.`;
      const said = cost ? `Its tour costs ${cost}` : "Its marks lead nowhere";
      return `${said}; the cheapest costs ${optimum}.`;
    },
    measured: (route) => measured(route, (cost) => `cost ${cost}`, "the least possible"),
    spare: ({ solution, route }) => {
      const roads = named(spareIn(solution, route, isMark));
      return `Its tour is a cheapest one, but it marks roads beside it: ${roads}.`;
    },
    levels: size.rows * size.cols < 64 ? CUSTOMERS_SMALL : CUSTOMERS,
    help: "Keys: arrows to move, space to draw, # . 2 4 D C to write, Enter to solve."
  };
}

const isMark = (value) => value > ON_TOUR;
const written = ({ grid }) =>
  grid.map((row) => row.map((value) => WRITTEN[value]).join("")).join("\n");

/**
 * With a route, customers are numbered in the order of their visits, and a mark beside the tour
 * is crossed out.
 */
function picture(asked, said, route = null) {
  const visits = new Map(
    (route?.legs ?? [])
      .slice(0, -1)
      .map(({ to: [row, col] }, index) => [row * asked[0].length + col, index + 1])
  );
  const questions = cellsOf(asked);
  const spare = new Set(
    (route ? spareIn(said, route, isMark) : []).map(([row, col]) => row * asked[0].length + col)
  );
  const cells = cellsOf(said ?? asked).map((value, cell) => {
    const isOnTour = isMark(value);
    const bare = isOnTour ? value - ON_TOUR : value;
    const isKept = bare === questions[cell] || value === questions[cell];
    const under = isKept ? bare : questions[cell] % ON_TOUR;
    const name = `${NAMES[under]}${isOnTour ? ", on the tour" : ""}`;
    const sign = under === BUSY || under === JAMMED ? `${under}` : "";
    const visit = visits.get(cell);
    if (visit && isKept)
      return {
        text: `${visit}`,
        look: `${LOOKS[under]} visited`,
        label: `${name}, visit ${visit}`
      };
    if (spare.has(cell))
      return { text: "✗", look: `${LOOKS[under]} broken`, label: `${name}, not needed` };
    return {
      text: isKept ? sign : "✗",
      look: `${LOOKS[under]}${isKept ? "" : " broken"}`,
      label: isKept ? name : `${name}, not kept`
    };
  });
  const hasTour = cellsOf(said ?? asked).some(isMark);
  const line = hasTour ? lineThrough(said ?? asked, (value) => value >= DEPOT) : "";
  return { rows: asked.length, cols: asked[0].length, cells, line };
}
