// Why something was not answered, as a sentence that the page shows.

export class Refusal extends Error {
  constructor({ reason, message, remedy, cell = null }) {
    super(`${message.charAt(0).toUpperCase()}${message.slice(1)}; ${remedy}.`);
    this.reason = reason;
    this.cell = cell;
  }
}

/** A puzzle that breaks its own rules; `cell` is [row, column] from 1. */
export const badPuzzle = (message, remedy, cell = null) =>
  new Refusal({ reason: "bad-puzzle", message, remedy, cell });
