// The marks of a kind as buttons: a brush to choose where a pointer paints, a pad to write with where it does not.

import { element } from "./dom.js";

/** Brushes: one is chosen. `onChoose(value)` hears of it; the returned node has `choose(value)`. */
export function brushes(kind, onChoose) {
  const inputs = kind.marks.map(({ value }) =>
    element("input", { type: "radio", name: `brush-${kind.board}`, value: `${value}`, on: { change: () => onChoose(value) } }));
  const labels = kind.marks.map((mark, index) =>
    element("label", { class: `brush ${kind.board}-brush`, title: hint(mark) }, inputs[index], swatch(kind, mark), mark.name));
  const node = element("div", { class: "palette", role: "radiogroup", "aria-label": "What to draw" }, ...labels);
  const choose = (value) => {
    inputs.forEach((input) => { input.checked = input.value === `${value}`; });
    onChoose(value);
  };
  choose(kind.marks[0].value);
  return { node, choose };
}

/** A pad of keys, for those without a keyboard. */
export function pad(kind, onWrite) {
  const keys = kind.marks.map((mark) =>
    element("button", { type: "button", class: "key", "aria-label": mark.name, on: { click: () => onWrite(mark.value) } }, mark.sign));
  return element("div", { class: "pad", role: "group", "aria-label": "Write into the chosen cell" }, ...keys);
}

/** A cell of a board as a sample of a mark. */
function swatch(kind, { value }) {
  const { look, text } = kind.picture([[value]], null).cells[0];
  const cell = element("span", { class: `cell ${look}` }, element("span", {}, text));
  return element("span", { class: `swatch board ${kind.board}`, "aria-hidden": "true" }, cell);
}

const hint = ({ name, keys }) => `${name} (key ${keys[0]})`;
