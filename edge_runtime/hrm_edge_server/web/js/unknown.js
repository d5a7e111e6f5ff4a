// Tasks that an ARC model cannot know: it knows tasks by name, from its training. Says so, and
// how to teach it one.

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

const commandsFor = (kind) =>
  [
    `hrm-data build ${kind} --dataset tasks --augment 7 --keep-colors --hold-out-all` +
      " --out data/tasks",
    `hrm-train --puzzle ${kind} --preset relational --data data/tasks`
  ].join("\n");
