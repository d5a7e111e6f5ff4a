// The address of a puzzle: /#sudoku=53..7…, the name of a model and the puzzle in one line.

/** {name, line} of an address; null if it holds no puzzle. */
export function readAddress(hash) {
  const found = /^#([^=]+)=(.+)$/s.exec(hash);
  if (!found) return null;
  try {
    return { name: decodeURIComponent(found[1]), line: decodeURIComponent(found[2]) };
  } catch {
    return null; // a stray % sign
  }
}

export function addressOf(model, kind, state) {
  const line = encodeURIComponent(kind.toLine(state)).replaceAll("%2F", "/").replaceAll("%3A", ":");
  return `#${encodeURIComponent(model.name)}=${line}`;
}

/** The model of that name; if it is not here, one for the same puzzle. */
export function modelNamed(models, name) {
  return models.find((model) => model.name === name) ?? models.find((model) => model.kind === name);
}
