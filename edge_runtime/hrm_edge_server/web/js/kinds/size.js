// The size of a model's board: as it says, or square.

export function sizeOf({ rows, cols, seq_len }) {
  const side = Math.round(Math.sqrt(seq_len));
  return { rows: rows ?? side, cols: cols ?? side };
}
