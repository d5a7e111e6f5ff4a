// Grids: rows of whole numbers, with the values that `puzzles` gives them.

export const gridOf = (rows, cols, value) =>
  Array.from({ length: rows }, () => Array(cols).fill(value));
export const copied = (grid) => grid.map((row) => [...row]);
export const cellsOf = (grid) => grid.flat();
export const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** The upper left corner of a grid at another size, filled up with `value`. */
export function resized(grid, rows, cols, value) {
  const made = gridOf(rows, cols, value);
  return made.map((line, row) => line.map((open, col) => grid[row]?.[col] ?? open));
}

/** An SVG path that joins neighboring cells of a way; a cell on its own becomes a point. */
export function lineThrough(grid, isOn) {
  const at = (row, col) => row < grid.length && col < grid[0].length && isOn(grid[row][col]);
  const strokes = [];
  grid.forEach((line, row) =>
    line.forEach((value, col) => {
      if (!isOn(value)) return;
      const from = `M${col + 0.5} ${row + 0.5}`;
      strokes.push(`${from}h0`);
      if (at(row, col + 1)) strokes.push(`${from}h1`);
      if (at(row + 1, col)) strokes.push(`${from}v1`);
    })
  );
  return strokes.join("");
}
