// A board in one line, for addresses. A # would have to be written as %23 there, so a wall is a w.

export const toLine = (text) => text.replaceAll("\n", "").replaceAll("#", "w");
export const fromLine = (line) => line.replaceAll("w", "#");
