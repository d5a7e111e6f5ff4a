// The page's state, and what follows from a change of its puzzle.

import { addressOf } from "./address.js";
import { $ } from "./dom.js";

export const page = { editor: null, thinking: null, models: [], kinds: [], drawn: null };

export const address = () => addressOf(page.model, page.kind, page.editor.state);

/**
 * Writes the puzzle into the address bar. A first visit keeps its plain address until the person
 * changes something.
 */
export function keepAddress() {
  if (page.isOpen && page.editor && !$("puzzle").hidden) history.replaceState(null, "", address());
}

export function keepText() {
  $("text").value = page.editor.text;
}

export const tellCommands = (thinking, { title, text, commands }) =>
  thinking.tell("open", title, text, commands);
