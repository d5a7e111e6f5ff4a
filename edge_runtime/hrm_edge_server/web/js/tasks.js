// The tasks of an ARC model: a picture of each, and the chosen one on the board with its
// demonstrations.

import { getJson, Refusal } from "./api.js";
import { $, element } from "./dom.js";
import { isSame } from "./grids.js";
import { still } from "./painter.js";

const isRow = (row) => Array.isArray(row) && row.every((cell) => Number.isInteger(cell));
const isGrid = (grid) =>
  Array.isArray(grid) && isRow(grid[0]) && grid.every((row) => isRow(row) && row.length);
const isPair = (pair) => isGrid(pair?.input) && isGrid(pair?.output);
const isPairs = (pairs) => Array.isArray(pairs) && pairs.length > 0 && pairs.every(isPair);
const isTask = (task) =>
  typeof task?.task === "string" && isPairs(task.train) && isPairs(task.test);

/** The tasks of a model in its order, without those that nobody can draw; none if it has none. */
export async function tasksOf(model) {
  if (!model.tasks) return [];
  try {
    const sent = await getJson(`models/${encodeURIComponent(model.name)}/tasks`);
    return Array.isArray(sent) ? sent.filter(isTask) : [];
  } catch (error) {
    if (!(error instanceof Refusal || error instanceof SyntaxError)) throw error;
    return [];
  }
}

/**
 * A card for each task, marked if the model gets it right; `onChoose(question)` hears of the one
 * that is pressed.
 */
export function showTasks(tasks, model, kind, onChoose) {
  const results = model.held_out_tasks;
  const right = new Set(results?.right);
  $("tasks").hidden = tasks.length === 0;
  $("tasks-title").textContent = `${tasks.length} tasks to choose from`;
  $("tasks-right").hidden = !results;
  if (results) {
    const share = `${right.size} of ${results.num_tasks}`;
    $("tasks-right").textContent =
      `✓ right on the held-out answer within ${results.attempts} attempts: ${share}.`;
  }
  $("tasks-list").replaceChildren(
    ...tasks.map((task) => {
      const name = task.task;
      const { input, output } = task.train[0];
      const pictures = [input, output].map((grid) =>
        still(kind.board, kind.picture(grid, null), "")
      );
      const choose = () => onChoose(questionOf(task));
      const isRight = right.has(name);
      const label = isRight ? `Task ${name}, which it gets right` : `Task ${name}`;
      const mark = isRight
        ? [element("span", { class: "right-mark", "aria-hidden": "true" }, "✓")]
        : [];
      return element(
        "li",
        {},
        element(
          "button",
          { type: "button", class: "task", "aria-label": label, on: { click: choose } },
          ...pictures,
          ...mark
        )
      );
    })
  );
}

/**
 * The question of a known task with this input, which brings its demonstrations and its answer;
 * else null.
 */
export function knownQuestion(tasks, name, grid) {
  const known = tasks.find(({ task }) => task === name);
  const index = known?.test.findIndex(({ input }) => isSame(input, grid)) ?? -1;
  return index < 0 ? null : questionOf(known, index);
}

export const questionOf = (task, index = 0) => ({ ...task, index });
