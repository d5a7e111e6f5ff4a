// The tasks of an ARC model: a picture of each, and the chosen one on the board with its demonstrations.

import { getJson, Refusal } from "./api.js";
import { $, element } from "./dom.js";
import { isSame } from "./grids.js";
import { still } from "./picture.js";

/** The tasks of a model by name; none where its bundle carries none. */
export async function tasksOf(model) {
  if (!model.tasks) return {};
  try {
    return await getJson(`/models/${encodeURIComponent(model.name)}/tasks`);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return {};
  }
}

/** A card for each task; `onChoose(question)` hears of the one that is pressed. */
export function showTasks(tasks, kind, onChoose) {
  const names = Object.keys(tasks);
  $("tasks").hidden = names.length === 0;
  $("tasks-title").textContent = `${names.length} tasks to choose from`;
  $("tasks-list").replaceChildren(...names.map((name) => {
    const { input, output } = tasks[name].train[0];
    const pictures = [input, output].map((grid) => still(kind.board, kind.picture(grid, null), ""));
    const choose = () => onChoose(questionOf(name, tasks[name]));
    return element("li", {}, element("button", { type: "button", class: "task", "aria-label": `Task ${name}`, on: { click: choose } }, ...pictures));
  }));
}

/** The question of a known task with this input, which brings its demonstrations and its answer; else null. */
export function knownQuestion(tasks, task, grid) {
  const known = Object.hasOwn(tasks, task) ? tasks[task] : null;
  const index = known?.test.findIndex(({ input }) => isSame(input, grid)) ?? -1;
  return index < 0 ? null : questionOf(task, known, index);
}

export const questionOf = (task, { train, test }, index = 0) => ({ task, train, test, index });
