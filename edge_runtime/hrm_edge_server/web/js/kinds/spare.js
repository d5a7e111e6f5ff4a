// Marks that a way does not need: an answer with any is not proven, although its way is the best.

const MOST_NAMED = 3;

/** The [row, column] of each mark that is on no leg of the route, from 0. */
export function spareIn(grid, route, isMark) {
  const used = new Set(route.legs.flatMap(({ cells }) => cells.map(String)));
  return grid.flatMap((line, row) =>
    line.flatMap((value, col) => (isMark(value) && !used.has(`${row},${col}`) ? [[row, col]] : []))
  );
}

/** "row 2, column 3; row 2, column 4; and 5 more" */
export function named(cells) {
  const places = cells
    .slice(0, MOST_NAMED)
    .map(([row, col]) => `row ${row + 1}, column ${col + 1}`);
  if (cells.length > MOST_NAMED) places.push(`and ${cells.length - MOST_NAMED} more`);
  return places.join("; ");
}
