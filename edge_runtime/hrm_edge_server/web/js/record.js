// How often a model was right on boards that it had never seen, as its bundle records it.

/** {count, solved, solvedWithMore}; null if the bundle records nothing. */
export function recordOf({ provenance = {} }) {
  const { held_out: count, solved, solved_16_attempts: solvedWithMore } = provenance;
  return typeof solved === "number" ? { count, solved, solvedWithMore } : null;
}

/** One digit only close to 100 %, where it tells models apart. */
export function percent(share) {
  const isAlmostAll = share > 0.99 && share < 1;
  return `${(100 * share).toFixed(isAlmostAll ? 1 : 0)} %`;
}

/** A sentence: the share, and the share with 16 attempts if it is known. */
export function recordInWords(model) {
  const record = recordOf(model);
  if (!record) return "";
  const what = model.tasks ? "held-out answers of its tasks" : "boards it had never seen";
  const more =
    typeof record.solvedWithMore === "number"
      ? `, and ${percent(record.solvedWithMore)} with 16 attempts`
      : "";
  return `Of ${record.count} ${what}, it got ${percent(record.solved)} right${more}.`;
}
