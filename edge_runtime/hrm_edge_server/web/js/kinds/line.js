// A board in one line, for addresses. A # would have to be written as %23 there, so a wall is a
// w. A board that is smaller than the model's has a / between its lines.

export function toLine(text, { rows, cols }) {
  const lines = text.split("\n");
  const isWhole = lines.length === rows && lines[0].length === cols;
  return lines.join(isWhole ? "" : "/").replaceAll("#", "w");
}

export const fromLine = (line) => line.replaceAll("w", "#").replaceAll("/", "\n");
