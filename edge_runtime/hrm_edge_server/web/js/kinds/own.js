// Any other puzzle: a board of the symbols in the legend that the server sends with the model.

import { cellsOf } from "../grids.js";
import { readCells } from "../notation.js";
import { measured } from "./measured.js";
import { sizeOf } from "./size.js";

const ERASING = [".", "Delete", "Backspace"];

export function own(model) {
  const { legend } = model;
  if (!legend) return null;
  const size = sizeOf(model);
  const open = legend.open_value;
  const symbols = new Map(
    Object.entries(legend.symbols).map(([value, symbol]) => [Number(value), symbol])
  );
  if (symbols.get(open) === " ") symbols.set(open, "."); // a person sees it
  const characters = { ...legend.values, [symbols.get(open)]: open, null: open };
  const linesOf = ({ grid }) => grid.map((row) => row.map((value) => symbols.get(value)).join(""));
  return {
    title: model.kind,
    board: "own",
    ...size,
    open,
    paints: false,
    isApart: false,
    marks: marksOf(symbols, open),
    read: (value) => readCells(value, { ...size, characters, numbers: [...symbols.keys()], open }),
    written: (state) => linesOf(state).join("\n"),
    toLine: (state) => linesOf(state).join(""),
    fromLine: (line) => line,
    question: ({ grid }) => grid,
    picture: (asked, said) => picture(symbols, open, asked, said),
    goal: legend.goal || `Fill the board: ${legend.described}.`,
    marked: (asked, value) => (asked === open ? value : asked),
    measured: (route) => measured(route, (cost) => `cost ${cost}`, "the least possible"),
    proven: "The check of this puzzle accepts the answer.",
    disproven: "The check of this puzzle rejects the model's last answer.",
    help: "Keys: the symbols, arrows to move, Enter to solve. Paste a puzzle anywhere on the page."
  };
}

function marksOf(symbols, open) {
  const written = [...symbols].filter(([value]) => value !== open);
  const taken = written.map(([, symbol]) => symbol);
  const isFree = (key) => !taken.includes(key);
  const keysOf = (symbol) => [symbol, ...[symbol.toLowerCase()].filter(isFree)];
  return [
    ...written.map(([value, symbol]) => ({
      value,
      name: symbol,
      keys: keysOf(symbol),
      sign: symbol
    })),
    { value: open, name: "Erase", keys: [symbols.get(open), ...ERASING].filter(isFree), sign: "⌫" }
  ];
}

function picture(symbols, open, asked, said) {
  const questions = cellsOf(asked);
  const cells = cellsOf(said ?? asked).map((value, cell) => {
    if (value === open) return { text: "", look: "open", label: "open" };
    const role = value === questions[cell] ? "given" : "answer";
    const text = symbols.get(value) ?? "?";
    return { text, look: role, label: `${text}, ${role}` };
  });
  return { rows: asked.length, cols: asked[0].length, cells, line: "" };
}
