// What no model here can solve: a task that an ARC model cannot know, because it knows tasks by
// name, from its training, and how to teach it one; a Sudoku of another size.

import { either } from "./dom.js";
import { sideOf } from "./kinds/sudoku.js";
import { valueOf } from "./notation.js";

/** Whether a JSON value is a task as ARC files hold it. */
export function isTaskFile(value) {
  return Array.isArray(value?.train) && Array.isArray(value?.test);
}

/** Whether a model knows a task; `tasks` are its own, none if its bundle does not list them. */
export function isKnown(name, tasks) {
  return name !== "" && (tasks.length === 0 || tasks.some(({ task }) => task === name));
}

/** Title, sentence and commands for a task that `model` does not know. */
export function unknownTask(task, model) {
  const why = task ? `${task} is not among them` : "this one has no name";
  const text =
    `The model has learned ${model.tasks} tasks and knows each by its name; ${why}. ` +
    "To teach a model this task, save its file in a folder named tasks, and run:";
  return { title: "A task it has not learned", text, commands: commandsFor(model.kind) };
}

/** The same if no model here knows ARC. */
export function taskWithoutModel() {
  const text =
    "No model here knows ARC. " +
    "To train one on this task, save its file in a folder named tasks, and run:";
  return { title: "An ARC task", text, commands: commandsFor("arc-7x7") };
}

/** What a Sudoku is whose size no board here has, and which sizes have one; null for others. */
export function unservedSudoku(value, models) {
  const side = sideOf(valueOf(value));
  const sudokus = models.filter(({ kind }) => kind.startsWith("sudoku"));
  if (!side || sudokus.some(({ rows }) => rows === side)) return null;
  const sized = (number) => `${number}×${number}`;
  const served = either(sudokus.flatMap(({ isBoard, rows }) => (isBoard ? [] : sized(rows))));
  const text = `No model here solves a Sudoku of ${sized(side)}`;
  return {
    title: `A Sudoku of ${sized(side)}`,
    text: served ? `${text}; send one of ${served}.` : `${text} or any other size.`
  };
}

const commandsFor = (kind) =>
  [
    `hrm-data build ${kind} --dataset tasks --augment 7 --keep-colors --hold-out-all` +
      " --out data/tasks",
    `hrm-train --puzzle ${kind} --preset relational --data data/tasks`
  ].join("\n");
