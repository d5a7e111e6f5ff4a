// The page: which model it shows, and what happens when a person presses, types or pastes.

import { modelNamed, readAddress } from "./address.js";
import { getJson, isSite, Refusal } from "./api.js";
import { Chooser } from "./chooser.js";
import { DrawnSet } from "./drawn.js";
import { $ } from "./dom.js";
import { Evaluation } from "./evaluation.js";
import { kindOf, solves } from "./kinds/index.js";
import { drawLabel, makeBoard, showLabel } from "./labels.js";
import { valueOf } from "./notation.js";
import { boardOf, judgeTask, open, show, solve, solveOneStep } from "./opening.js";
import { Operations } from "./operations.js";
import { address, keepAddress, page, tellCommands } from "./page.js";
import { Share } from "./share.js";
import { startTabs } from "./tabs.js";
import { isTaskFile, taskWithoutModel } from "./unknown.js";

async function start() {
  for (const node of document.querySelectorAll(".served")) node.hidden = isSite;
  let models, kinds;
  try {
    [{ models }, { kinds }] = await Promise.all([getJson("models"), getJson("kinds")]);
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
  const boards = kinds
    .filter((kind) => !models.some((model) => solves(model, kind)))
    .map(boardOf)
    .filter(kindOf);
  Object.assign(page, {
    kinds,
    models: [...models, ...boards],
    drawn: new DrawnSet(look),
    evaluation: new Evaluation(look)
  });
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

/** Shows the puzzle of an address; a site, which has no other visitors, solves it at once. */
function openLink({ name, line }) {
  const model = modelNamed(page.models, name);
  if (!model) {
    show(page.models[0]);
    page.thinking?.tell("bad", "Not here", `This page has no model or board named ${name}.`);
    return;
  }
  const puzzle = kindOf(model)?.fromLine(line);
  show(model, puzzle);
  if (isSite && kindOf(model)?.read(puzzle)?.isSound) solve();
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

/**
 * The model on the page if its board has the size of a puzzle, else the smallest one that reads
 * it; null if none does.
 */
function fittingModel(value, isTask) {
  const { chosen } = page.chooser;
  const read = (model) => kindOf(model)?.read(value);
  const isFramed = (model) =>
    Boolean(kindOf(model).frames) && read(model).grid.flat().length < cellsOf(model);
  if (read(chosen)?.isSound && !isFramed(chosen)) return chosen;
  const readers = page.models
    .filter(
      (model) => read(model)?.isSound && (isTask || read(model).task || !kindOf(model).isApart)
    )
    .filter((model) => !(model.isBoard && isFramed(model)));
  const framing = readers.filter(isFramed).sort((one, other) => cellsOf(one) - cellsOf(other));
  return readers.find((model) => !isFramed(model)) ?? framing[0] ?? null;
}

const cellsOf = (model) => kindOf(model).rows * kindOf(model).cols;

function listen() {
  $("solve").onclick = solve;
  $("step").onclick = solveOneStep;
  $("new").onclick = makeBoard;
  $("difficulty").onchange = makeBoard;
  $("show-label").onclick = showLabel;
  $("draw-label").onclick = drawLabel;
  $("try-more").onclick = () => {
    $("attempts-wanted").value = $("try-more").value;
    solve();
  };
  $("stop").onclick = () => page.thinking.stop();
  $("clear").onclick = () => {
    page.editor.clear();
    page.editor.board.focus(0);
  };
  $("undo").onclick = () => page.editor.undo();
  $("read").onclick = () => take($("text").value);
  $("paced").checked = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") page.thinking?.stop();
    if (event.key === "Enter" && !event.repeat && !isControl(event.target)) {
      if ($("solve").checkVisibility()) $("solve").click();
    }
    if (event.key === "z" && (event.ctrlKey || event.metaKey) && !isField(event.target))
      page.editor?.undo();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target === $("text"))
      $("read").click();
  });
  document.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text");
    if (isField(event.target) || text.trim().length < 2 || $("puzzle").hidden) return;
    event.preventDefault();
    take(text.trim().includes("\n") ? text : text.trim());
    page.editor?.board.focus();
  });
}

const isField = (target) => target.closest?.("input, textarea") !== null;
const isControl = (target) => isField(target) || target.closest("a, button, select, summary");

start();
