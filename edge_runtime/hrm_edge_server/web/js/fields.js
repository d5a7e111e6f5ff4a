// What only ARC asks for: the size of a grid, the name of its task, and the demonstrations of
// that task.

import { $, element } from "./dom.js";
import { repaint, still } from "./painter.js";

/** Rows and columns; `onResize(rows, cols)` hears of a new size within 1 and `most`. */
export function sizeFields(most, onResize) {
  const field = (label) =>
    element("input", {
      type: "number",
      min: "1",
      max: `${most}`,
      inputmode: "numeric",
      "aria-label": label,
      on: { change: () => resize() }
    });
  const [rows, cols] = [field("Rows"), field("Columns")];
  const show = (numRows, numCols) => {
    [rows.value, cols.value] = [numRows, numCols];
  };
  const resize = () => {
    const size = [rows, cols].map(({ value }) =>
      Math.max(1, Math.min(most, Math.round(Number(value)) || 1))
    );
    show(...size);
    onResize(...size);
  };
  return { node: element("span", { class: "size" }, "Size ", rows, " × ", cols), show };
}

/**
 * The name of the task, the size, and whether colors are numbered. `show(state)` fills all of it
 * in.
 */
export function taskFields(kind, { onTask, onResize }) {
  const task = element("input", {
    type: "text",
    id: "task",
    maxlength: "100",
    autocomplete: "off",
    spellcheck: "false",
    on: { change: () => onTask(task.value.trim()) }
  });
  const size = sizeFields(kind.most, onResize);
  const numbers = element("input", {
    type: "checkbox",
    on: {
      change: () => {
        document.body.classList.toggle("numbers", numbers.checked);
        repaint();
      }
    }
  });
  const row = element(
    "div",
    { class: "row fields" },
    element("label", {}, "Task ", task),
    size.node,
    element("label", { class: "check" }, numbers, "Numbers")
  );
  let drawn = null;
  const show = (state) => {
    task.value = state.task;
    size.show(state.grid.length, state.grid[0].length);
    if (drawn === state.shown) return;
    drawn = state.shown;
    $("shown").replaceChildren(
      ...state.shown.map((pair, index) => demonstration(kind, pair, index + 1))
    );
  };
  return { node: row, show };
}

function demonstration(kind, { input, output }, number) {
  return element(
    "figure",
    { class: "demonstration" },
    still(kind.board, kind.picture(input, null), `Demonstration ${number}, input`),
    element("span", { class: "arrow", "aria-hidden": "true" }, "→"),
    still(kind.board, kind.picture(output, null), `Demonstration ${number}, output`)
  );
}
