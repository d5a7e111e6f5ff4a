// The page: which model, which kind of puzzle, and what happens when somebody presses a button.

import { getJson, Refusal } from "./api.js";
import { DrawnSet } from "./drawn.js";
import { $, element } from "./dom.js";
import { Editor } from "./editor.js";
import { kindOf } from "./kinds/index.js";
import { valueOf } from "./notation.js";
import { Operations } from "./operations.js";
import { SAMPLES } from "./samples.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { Thinking } from "./thinking.js";

const page = { editor: null, thinking: null, models: [], drawn: null };

async function start() {
  startTheme();
  let models;
  try {
    ({ models } = await getJson("/models"));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    $("about").textContent = error.message;
    return;
  }
  const operations = new Operations(models);
  const tabs = startTabs((name) => (name === "operations" ? operations.start() : operations.stop()));
  const drawn = new DrawnSet((puzzle) => {
    tabs.go("puzzle");
    page.editor.take(puzzle);
    page.editor.board.focus();
  });
  $("model").replaceChildren(...models.map(({ name }) => element("option", {}, name)));
  Object.assign(page, { models, drawn });
  $("model").onchange = () => open(models[$("model").selectedIndex], drawn);
  listen();
  open(models[0], drawn);
}

/** Shows the board of a model. */
function open(model, drawn) {
  const kind = kindOf(model);
  const tasks = model.identifiers > 1 ? [`${model.identifiers - 1} tasks learned`] : [];
  $("about").textContent = [model.precision, `${model.slots} slots`, `at most ${model.max_segments} segments`, ...tasks].join(" · ");
  $("undrawable").hidden = kind !== null;
  $("workplace").hidden = kind === null;
  page.thinking?.forget();
  if (!kind) return;
  page.editor = new Editor(kind, {
    onChange: () => { page.thinking.forget(); drawn.offer(null, null); page.thinking.offerDrawn(); keepText(); },
    onSolve: solve,
    onUnread: (value) => page.thinking.explain(value),
  });
  page.thinking = new Thinking(model, kind, page.editor, (question, answer) => drawn.offer(question, answer));
  drawn.show(model, kind);
  $("attempts-wanted").max = model.max_attempts;
  $("help").textContent = kind.help;
  const samples = { ...SAMPLES[model.kind], "The server's own": model.sample };
  const named = Object.entries(samples).filter(([, value]) => value !== undefined);
  $("samples").replaceChildren(...["Samples …", ...named.map(([name]) => name)].map((name) => element("option", {}, name)));
  $("samples").onchange = () => {
    const [, value] = named[$("samples").selectedIndex - 1] ?? [];
    if (value !== undefined) page.editor.take(value);
    $("samples").selectedIndex = 0;
  };
  if (named.length) page.editor.take(named[0][1]);
  keepText();
}

function solve() {
  const [attempts, segments] = [$("attempts-wanted"), $("segments-wanted")].map(({ value }) => Number(value));
  page.thinking.solve({
    ...(attempts > 1 ? { attempts } : {}),
    ...(segments > 0 ? { max_segments: segments } : {}),
    ...($("policy").value ? { policy: $("policy").value } : {}),
  });
}

/** Takes what was pasted or typed; where only the kind of another model reads it, that model's board is shown. */
function take(text) {
  const read = (model) => kindOf(model)?.read(valueOf(text));
  const fitting = page.models.findIndex((model) => read(model)?.isSound && (read(model).task || !kindOf(model).isApart));
  if (fitting >= 0 && !read(page.models[$("model").selectedIndex])?.isSound) {
    $("model").selectedIndex = fitting;
    open(page.models[fitting], page.drawn);
  }
  page.editor?.take(text);
}

function keepText() {
  $("text").value = page.editor.text;
}

function listen() {
  $("solve").onclick = solve;
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
