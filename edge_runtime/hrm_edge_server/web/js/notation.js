// Boards as people write them, read for drawing only: what is solved is the grid that is drawn,
// and what cannot be drawn is sent to the server as it is, which says in a sentence what is
// wrong. `puzzles` decides; a test holds both together.

/**
 * The JSON value that a text holds, else the text itself (the headers of .sdk files begin like a
 * list).
 */
export function valueOf(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" ? value : text;
  } catch {
    return text;
  }
}

/**
 * A board of one character or number a cell: one text, lines, a list of lines, or rows.
 * `characters` maps each character to its value. Returns {grid, isSound}, or null where nothing
 * can be drawn: a value that stands for nothing is drawn as `open` and makes it unsound.
 */
export function readCells(value, { rows, cols, characters, numbers, open, padsLines = false }) {
  const lines = linesOf(value, rows, cols, padsLines);
  if (!lines || lines.length !== rows || lines.some((line) => line.length !== cols)) return null;
  let isSound = true;
  const grid = lines.map((line) =>
    [...line].map((cell) => {
      const found =
        typeof cell === "number" ? (numbers.includes(cell) ? cell : undefined) : characters[cell];
      isSound &&= found !== undefined;
      return found ?? open;
    })
  );
  return { grid, isSound };
}

function linesOf(value, rows, cols, padsLines) {
  if (typeof value === "string") return textLines(value, rows, cols, padsLines);
  if (!Array.isArray(value)) return null;
  if (value.every((line) => typeof line === "string"))
    return textLines(value.join("\n"), rows, cols, padsLines);
  return value.every(Array.isArray) ? value : null;
}

function textLines(text, rows, cols, padsLines) {
  const lines = boardLines(text, padsLines)?.map((line) => [...line]);
  return lines?.length === 1 && rows > 1 ? chunked(lines[0], cols) : lines;
}

/**
 * The lines of a board as `puzzles` finds them, or null if they show two shapes or have
 * separators.
 */
function boardLines(text, padsLines) {
  const lines = text.split(/\r\n|\r|\n/);
  while (lines.length > 1 && !lines.at(-1)) lines.pop();
  while (lines.length > 1 && !lines[0]) lines.shift();
  if (lines.length === 1) return lines;
  if (lines.every((line) => /^.( .)+\s*$/.test(line))) return null;
  const bare = lines.map((line) => line.trimEnd());
  const width = Math.max(...bare.map((line) => line.length));
  const isIndented = bare.every((line) => !line || /^\s/.test(line));
  if (padsLines && !text.includes(".")) {
    const isWide = lines.every((line) => line.length === lines[0].length && line.length > width);
    const showsTwoShapes = isIndented || isWide || !bare[0] || !bare.at(-1);
    return showsTwoShapes ? null : bare.map((line) => line.padEnd(width));
  }
  return isIndented ? null : bare;
}

function chunked(cells, cols) {
  return Array.from({ length: Math.ceil(cells.length / cols) }, (_, row) =>
    cells.slice(row * cols, (row + 1) * cols)
  );
}

/**
 * The form with marks apart: {"grid": rows, "start": [row, column], "customers": [[row, column],
 * ...]}. `marks` says which value each key puts on its cells.
 */
export function readObject(value, { rows, cols, numbers, open, marks }) {
  const read = readCells(value.grid, { rows, cols, characters: {}, numbers, open });
  if (!read) return null;
  for (const [key, mark] of Object.entries(marks)) {
    for (const cell of Array.isArray(value[key]?.[0]) ? value[key] : [value[key] ?? []]) {
      if (read.grid[cell[0]]?.[cell[1]] !== undefined)
        read.grid[cell[0]][cell[1]] = mark(read.grid[cell[0]][cell[1]]);
      else read.isSound &&= cell.length === 0;
    }
  }
  return read;
}

/**
 * What `read(form)` reads in the size of `form`, else in the smaller size of the value: a server
 * frames such a board in walls. A smaller board is read only if it is sound.
 */
export function readFramed(value, form, read) {
  const whole = read(form);
  const size = sizeOfValue(value);
  if (whole || !size || size.rows > form.rows || size.cols > form.cols) return whole;
  const smaller = read({ ...form, ...size });
  return smaller?.isSound ? smaller : null;
}

/** Rows and columns of a board in any notation; one line is a square. */
function sizeOfValue(value) {
  const rows = value?.grid ?? value;
  const lines = typeof rows === "string" ? boardLines(rows, true) : rows;
  if (!Array.isArray(lines)) return null;
  const cols = Math.max(0, ...lines.map((line) => line?.length ?? 0));
  if (lines.length > 1) return { rows: lines.length, cols };
  const side = Math.round(Math.sqrt(cols));
  return side * side === cols ? { rows: side, cols: side } : null;
}
