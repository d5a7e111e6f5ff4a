// The figure of a way: "46 moves, the fewest possible".

/** `worded(number)` names a length or a cost; `best` says what the best one is. */
export function measured({ cost, optimum }, worded, best) {
  if (cost === optimum) return `${worded(cost)}, ${best}`;
  const found = cost ? worded(cost) : "leads nowhere";
  return `${found}; ${best}: ${optimum}`;
}
