// The page: which model, which kind of puzzle, and what happens when somebody presses a button.

import { addressOf, modelNamed, readAddress } from "./address.js";
import { getJson, Refusal } from "./api.js";
import { Chooser } from "./chooser.js";
import { DrawnSet } from "./drawn.js";
import { $, element } from "./dom.js";
import { Editor } from "./editor.js";
import { Evaluation } from "./evaluation.js";
import { kindOf, solves } from "./kinds/index.js";
import { valueOf } from "./notation.js";
import { Operations } from "./operations.js";
import { recordInWords } from "./record.js";
import { SAMPLES } from "./samples.js";
import { Share } from "./share.js";
import { startTabs } from "./tabs.js";
import { knownQuestion, questionOf, showTasks, tasksOf } from "./tasks.js";
import { startTheme } from "./theme.js";
import { Thinking } from "./thinking.js";
import { isKnown, isTaskFile, taskWithoutModel, unknownTask } from "./unknown.js";

const page = { editor: null, thinking: null, models: [], kinds: [], drawn: null };

async function start() {
  startTheme();
  let models, kinds;
  try {
    [{ models }, { kinds }] = await Promise.all([getJson("/models"), getJson("/kinds")]);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    $("about").textContent = error.message;
    return;
  }
  const operations = new Operations(models);
  const tabs = startTabs((name) => {
    if (name === "operations") operations.start();
    else operations.stop();
    if (location.hash === "#puzzle") keepAddress();
  });
  const look = (puzzle) => {
    tabs.go("puzzle");
    page.editor.take(puzzle);
    page.editor.board.focus();
  };
  const boards = kinds.filter((kind) => !models.some((model) => solves(model, kind))).map(boardOf).filter(kindOf);
  Object.assign(page, { kinds, models: [...models, ...boards], drawn: new DrawnSet(look), evaluation: new Evaluation(look) });
  page.chooser = new Chooser(models, boards, open);
  listen();
  page.share = new Share(() => location.origin + location.pathname + address());
  const link = readAddress(location.hash);
  if (link) openLink(link);
  else show(models[0]);
  page.isOpen = true;
  addEventListener("hashchange", () => {
    const linked = readAddress(location.hash);
    if (linked) openLink(linked);
  });
}

/** Shows a model as if a person had chosen it, with that puzzle or its first sample. */
function show(model, puzzle = null) {
  page.chooser.choose(model);
  open(model, puzzle);
}

/** Shows the puzzle of an address. */
function openLink({ name, line }) {
  const model = modelNamed(page.models, name);
  if (model) show(model, kindOf(model)?.fromLine(line));
  else show(page.models[0]);
  if (!model) page.thinking?.tell("bad", "Not here", `This server has no model or board named ${name}.`);
}

const address = () => addressOf(page.model, page.kind, page.editor.state);

/** Writes the puzzle into the address bar. A first visit keeps its plain address until the person changes something. */
function keepAddress() {
  if (page.isOpen && page.editor && !$("puzzle").hidden) history.replaceState(null, "", address());
}

/** What stands in for a model where none here solves a kind: its boards can be made, drawn and labelled. */
const boardOf = (kind) => ({ ...kind, name: kind.kind, isBoard: true, tasks: 0, max_attempts: 1, max_segments: 1,
  seq_len: kind.rows * kind.cols, halting: { threshold: 0 } });

/** Shows the board of a model, with a puzzle or the first sample. */
function open(model, puzzle = null) {
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
    onSolve: solve,
    onUnread: (value, isDrawn) => page.thinking.explain(value, isDrawn),
    onAnswer: (answer) => drawn.offer(page.editor.question, { solution: answer, verified: null }),
  });
  page.thinking = new Thinking(model, kind, page.editor, {
    onAnswer: (question, answer) => { drawn.offer(question, answer); page.share.offer(page.thinking?.result ?? null); },
    onForget: () => page.share.offer(null),
  });
  drawn.show(model, kind);
  $("attempts-wanted").max = model.max_attempts;
  $("attempts-wanted").value = 1;
  $("solve").disabled = Boolean(model.isBoard);
  $("goal").textContent = kind.goal;
  $("help").textContent = kind.help;
  const levels = levelsOf(model, kind);
  $("making").hidden = levels.length === 0;
  $("difficulty").replaceChildren(...levels.map(([value, name]) => element("option", { value }, name)));
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

const PROVEN = "Proven means that it keeps every rule and every given, not that it is the only answer.";

function promiseOf(model) {
  if (model.isBoard || model.proof_exists) return `It rewrites its whole answer until the answer is proven or it gives up. ${PROVEN}`;
  const why = model.tasks ? " An ARC answer has no proof: only its author's answer decides." : "";
  return `It rewrites its whole answer until it is sure.${why}`;
}

function aboutOf(model) {
  if (model.isBoard) return "No model here solves this board: draw it, label it, and train one.";
  const tasks = model.tasks ? `This one has learned ${model.tasks} tasks and knows no others.` : "";
  return `${tasks} ${recordInWords(model)}`.trim();
}

const levelsOf = (model, kind) => (page.kinds.find((one) => one.kind === model.kind)?.difficulties ?? [])
  .map((name) => [name, kind.levels?.[name] ?? name]);

/** Lists the samples of a model and returns them. */
function showSamples(model) {
  const samples = { ...SAMPLES[model.kind], "The server's own": model.sample };
  const named = Object.entries(samples).filter(([, value]) => value !== undefined);
  $("samples").hidden = named.length === 0;
  $("samples").replaceChildren(...["Samples …", ...named.map(([name]) => name)].map((name) => element("option", {}, name)));
  $("samples").onchange = () => {
    const [, value] = named[$("samples").selectedIndex - 1] ?? [];
    if (value !== undefined) page.editor.take(value);
    $("samples").selectedIndex = 0;
  };
  return named.map(([, value]) => value);
}

/** The tasks that an ARC model knows. The first goes onto the board, unless a person has put something there. */
async function chooseTask(model, kind) {
  $("tasks").hidden = true;
  page.tasks = tasksOf(model);
  const tasks = await page.tasks;
  if (page.model !== model) return;
  showTasks(tasks, model, kind, (question) => { page.editor.take(question); page.editor.board.focus(); });
  const [first] = Object.keys(tasks);
  if (first && page.isUntouched) page.editor.take(questionOf(first, tasks[first]));
}

/** A known task gets its demonstrations and its answer; for one that the model cannot know, the page says so. */
async function judgeTask() {
  const { model, kind, editor, thinking } = page;
  if (!kind.isApart) return;
  const tasks = await page.tasks;
  if (page.editor !== editor) return;
  const { task, grid } = editor.state;
  const known = knownQuestion(tasks, task, grid);
  if (known) editor.take(known);
  else if (!isKnown(task, tasks)) tellCommands(thinking, unknownTask(task, model));
}

const tellCommands = (thinking, { title, text, commands }) => thinking.tell("open", title, text, commands);

/** A fresh board from the generator, which knows its answer. */
async function makeBoard() {
  const { model } = page;
  try {
    const made = await getJson(`/puzzle?kind=${encodeURIComponent(model.kind)}&difficulty=${encodeURIComponent($("difficulty").value)}`);
    if (page.model !== model) return;
    page.editor.take(made.puzzle);
    showLabels(made);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    page.thinking.tell("bad", "No board", error.message);
  }
}

/** Which ways there are to label the board: the generator's answer, where it made it, and one's own. */
function showLabels(made) {
  page.fresh = made;
  $("show-label").hidden = !made;
  $("draw-label").hidden = page.kind.isApart;
  $("draw-label").setAttribute("aria-pressed", "false");
}

function showLabel() {
  const { grid } = page.kind.read(page.fresh.solution);
  page.thinking.forget();
  page.editor.draw(grid);
  page.thinking.tell("good", "The generator's answer", "Not the model's. It can go into the set.");
  page.drawn.offer(page.editor.question, { solution: grid, verified: true });
}

function drawLabel() {
  const isDrawing = $("draw-label").getAttribute("aria-pressed") === "true";
  page.thinking.forget();
  page.drawn.offer(null, null);
  page.editor.drawAnswer(isDrawing ? null : page.editor.state.grid);
  $("draw-label").setAttribute("aria-pressed", `${!isDrawing}`);
  if (!isDrawing) page.thinking.tell("open", "Draw the answer", "Then add it to the set: it is checked first.");
}

function solve() {
  if (page.model.isBoard) return;
  $("draw-label").setAttribute("aria-pressed", "false");
  const [attempts, segments] = [$("attempts-wanted"), $("segments-wanted")].map(({ value }) => Number(value));
  page.thinking.solve({
    ...(attempts > 1 ? { attempts } : {}),
    ...(segments > 0 ? { max_segments: segments } : {}),
    ...($("policy").value ? { policy: $("policy").value } : {}),
  });
}

/** Takes what was pasted or typed; the board of the smallest model that reads it is shown. */
function take(text) {
  const value = valueOf(text);
  const isTask = isTaskFile(value);
  const fitting = fittingModel(value, isTask);
  if (fitting && fitting !== page.chooser.chosen) {
    show(fitting, text);
  } else if (isTask && !fitting) {
    tellCommands(page.thinking, taskWithoutModel());
  } else {
    page.isUntouched = false;
    if (page.editor?.take(text)) judgeTask();
  }
}

/** The model on the page if its board has the size of a puzzle, else the smallest one that reads it; null if none does. */
function fittingModel(value, isTask) {
  const { chosen } = page.chooser;
  const read = (model) => kindOf(model)?.read(value);
  const isFramed = (model) => Boolean(kindOf(model).frames) && read(model).grid.flat().length < cellsOf(model);
  if (read(chosen)?.isSound && !isFramed(chosen)) return chosen;
  const readers = page.models.filter((model) => read(model)?.isSound && (isTask || read(model).task || !kindOf(model).isApart))
    .filter((model) => !(model.isBoard && isFramed(model)));
  const framing = readers.filter(isFramed).sort((one, other) => cellsOf(one) - cellsOf(other));
  return readers.find((model) => !isFramed(model)) ?? framing[0] ?? null;
}

const cellsOf = (model) => kindOf(model).rows * kindOf(model).cols;

function keepText() {
  $("text").value = page.editor.text;
}

function listen() {
  $("solve").onclick = solve;
  $("new").onclick = makeBoard;
  $("difficulty").onchange = makeBoard;
  $("show-label").onclick = showLabel;
  $("draw-label").onclick = drawLabel;
  $("try-more").onclick = () => {
    $("attempts-wanted").value = $("try-more").value;
    solve();
  };
  $("stop").onclick = () => page.thinking.stop();
  $("clear").onclick = () => { page.editor.clear(); page.editor.board.focus(0); };
  $("undo").onclick = () => page.editor.undo();
  $("read").onclick = () => take($("text").value);
  $("paced").checked = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") page.thinking?.stop();
    if (event.key === "z" && (event.ctrlKey || event.metaKey) && !isField(event.target)) page.editor?.undo();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target === $("text")) $("read").click();
  });
  document.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text");
    if (isField(event.target) || text.trim().length < 2 || $("puzzle").hidden) return;
    event.preventDefault();
    take(text.trim().includes("\n") ? text : text.trim());
  });
}

const isField = (target) => target.closest?.("input, textarea") !== null;

start();
