// The marks of a kind as buttons: a brush to choose where a pointer paints, a pad to write with
// where it does not.

import { element } from "./dom.js";

const MOST_IN_A_ROW = 10; // keys of a pad

/** Brushes: one is chosen, the first to begin with; `onChoose(value)` hears of it. */
export function brushes(kind, onChoose) {
  const labels = kind.marks.map((mark, index) => {
    const input = element("input", {
      type: "radio",
      name: "brush",
      on: { change: () => onChoose(mark.value) }
    });
    input.checked = index === 0;
    return element(
      "label",
      { class: `brush ${kind.board}-brush`, title: hint(mark) },
      input,
      swatch(kind, mark),
      mark.name
    );
  });
  return element(
    "div",
    { class: "palette", role: "radiogroup", "aria-label": "What to draw" },
    ...labels
  );
}

/** A pad of keys, for those without a keyboard. */
export function pad(kind, onWrite) {
  const keys = kind.marks.map((mark) =>
    element(
      "button",
      {
        type: "button",
        class: "key",
        "aria-label": mark.name,
        on: { click: () => onWrite(mark.value) }
      },
      mark.sign
    )
  );
  const made = element(
    "div",
    { class: "pad", role: "group", "aria-label": "Write into the chosen cell" },
    ...keys
  );
  made.style.setProperty("--keys", Math.min(keys.length, MOST_IN_A_ROW));
  return made;
}

/** A cell of a board as a sample of a mark. */
function swatch(kind, { value }) {
  const { look, text } = kind.picture([[value]], null).cells[0];
  const cell = element("span", { class: `cell ${look}` }, element("span", {}, text));
  return element("span", { class: `swatch board ${kind.board}`, "aria-hidden": "true" }, cell);
}

const hint = ({ name, keys }) => `${name} (key ${keys[0]})`;
