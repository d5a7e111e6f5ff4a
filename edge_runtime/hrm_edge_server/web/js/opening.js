// A model on the page: its words, its samples, its tasks and its board.

import { $, element } from "./dom.js";
import { Editor } from "./editor.js";
import { kindOf } from "./kinds/index.js";
import { makeBoard, showLabels } from "./labels.js";
import { keepAddress, keepText, page, tellCommands } from "./page.js";
import { recordInWords } from "./record.js";
import { SAMPLES } from "./samples.js";
import { knownQuestion, questionOf, showTasks, tasksOf } from "./tasks.js";
import { Thinking } from "./thinking.js";
import { isKnown, unknownTask, unservedSudoku } from "./unknown.js";

/** Shows a model as if a person had chosen it, with that puzzle or its first sample. */
export function show(model, puzzle = null) {
  page.chooser.choose(model);
  open(model, puzzle);
}

/**
 * What stands in for a model where none here solves a kind: its boards can be made, drawn and
 * labelled.
 */
export const boardOf = (kind) => ({
  ...kind,
  name: kind.kind,
  isBoard: true,
  tasks: 0,
  max_attempts: 1,
  max_segments: 1,
  seq_len: kind.rows * kind.cols,
  halting: { threshold: 0 }
});

/** Shows the board of a model, with a puzzle or the first sample. */
export function open(model, puzzle = null) {
  const { drawn } = page;
  const kind = kindOf(model);
  $("promise").textContent = promiseOf(model);
  $("about").textContent = aboutOf(model);
  $("undrawable").hidden = kind !== null;
  $("workplace").hidden = kind === null;
  page.thinking?.forget();
  if (!kind) return;
  Object.assign(page, { model, kind, fresh: null, tasks: null });
  page.editor = new Editor(kind, {
    onChange: changed,
    onUnread: (value, isDrawn) => {
      const unserved = isDrawn ? null : unservedSudoku(value, page.models);
      if (unserved) page.thinking.tell("bad", unserved.title, unserved.text);
      else page.thinking.explain(value, isDrawn);
    },
    onAnswer: (answer) => drawn.offer(page.editor.question, { solution: answer, verified: null })
  });
  page.thinking = new Thinking(model, kind, page.editor, {
    onAnswer: (question, answer) => {
      drawn.offer(question, answer);
      page.share.offer(page.thinking?.result ?? null);
    },
    onForget: () => page.share.offer(null)
  });
  drawn.show(model, kind);
  $("attempts-wanted").max = model.max_attempts;
  $("attempts-wanted").value = 1;
  $("solve").disabled = $("step").disabled = Boolean(model.isBoard);
  $("goal").textContent = kind.goal;
  $("help").textContent = kind.help;
  const levels = levelsOf(model, kind);
  $("making").hidden = levels.length === 0;
  $("difficulty").replaceChildren(
    ...levels.map(([value, name]) => element("option", { value }, name))
  );
  $("difficulty").value = levels[1]?.[0] ?? levels[0]?.[0] ?? "";
  page.evaluation.show(model, kind, levels);
  const samples = showSamples(model);
  if (puzzle !== null) page.editor.take(puzzle);
  else if (samples.length) page.editor.take(samples[0]);
  else makeBoard();
  keepText();
  showLabels(null);
  page.isUntouched = puzzle === null;
  chooseTask(model, kind);
  if (puzzle !== null) judgeTask();
}

/** The board holds another puzzle now: nothing said about the last one holds. */
function changed() {
  page.isUntouched = false;
  page.thinking.forget();
  page.drawn.offer(null, null);
  page.thinking.offerDrawn();
  keepText();
  showLabels(null);
  keepAddress();
}

const PROVEN =
  "Proven means that it keeps every rule and every given, not that it is the only one.";

function promiseOf(model) {
  if (model.isBoard || model.proof_exists)
    return `It rewrites its whole answer until it is proven or the model gives up. ${PROVEN}`;
  const why = model.tasks ? " An ARC answer has no proof: only its author's answer decides." : "";
  return `It rewrites its whole answer until it is sure.${why}`;
}

function aboutOf(model) {
  if (model.isBoard) return "No model here solves this board: draw it, label it, and train one.";
  const tasks = model.tasks ? `This one has learned ${model.tasks} tasks and knows no others.` : "";
  return `${tasks} ${recordInWords(model)}`.trim();
}

const levelsOf = (model, kind) =>
  (page.kinds.find((one) => one.kind === model.kind)?.difficulties ?? []).map((name) => [
    name,
    kind.levels?.[name] ?? name
  ]);

/** Lists the samples of a model and returns them. */
function showSamples(model) {
  const samples = { ...SAMPLES[model.kind], "The model's own": model.sample };
  const named = Object.entries(samples).filter(([, value]) => value !== undefined);
  $("samples").hidden = named.length === 0;
  $("samples").replaceChildren(
    ...["Samples …", ...named.map(([name]) => name)].map((name) => element("option", {}, name))
  );
  $("samples").onchange = () => {
    const [, value] = named[$("samples").selectedIndex - 1] ?? [];
    if (value !== undefined) page.editor.take(value);
    $("samples").selectedIndex = 0;
  };
  return named.map(([, value]) => value);
}

/**
 * The tasks that an ARC model knows. The first goes onto the board, unless a person has put
 * something there.
 */
async function chooseTask(model, kind) {
  $("tasks").hidden = true;
  page.tasks = tasksOf(model);
  const tasks = await page.tasks;
  if (page.model !== model) return;
  showTasks(tasks, model, kind, (question) => {
    page.editor.take(question);
    page.editor.board.focus();
  });
  if (tasks.length && page.isUntouched) page.editor.take(questionOf(tasks[0]));
}

/**
 * A known task gets its demonstrations and its answer; for one that the model cannot know, the
 * page says so.
 */
export async function judgeTask() {
  const { model, kind, editor, thinking } = page;
  if (!kind.isApart) return;
  const tasks = await page.tasks;
  if (page.editor !== editor) return;
  const { task, grid } = editor.state;
  const known = knownQuestion(tasks, task, grid);
  if (known) editor.take(known);
  else if (!isKnown(task, tasks)) tellCommands(thinking, unknownTask(task, model));
}

export function solve() {
  think(Number($("segments-wanted").value), $("paced").checked);
}

/** What the model says after one segment more than the last time. */
export function solveOneStep() {
  think(page.thinking.nextSegment, false);
}

function think(segments, isPaced) {
  if (page.model.isBoard) return;
  page.isUntouched = false;
  $("draw-label").setAttribute("aria-pressed", "false");
  const attempts = Number($("attempts-wanted").value);
  const options = {
    ...(attempts > 1 ? { attempts } : {}),
    ...(segments > 0 ? { max_segments: segments } : {}),
    ...($("policy").value ? { policy: $("policy").value } : {})
  };
  page.thinking.solve(options, isPaced);
}
