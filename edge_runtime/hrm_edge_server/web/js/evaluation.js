// Live evaluation: puzzles that no training set holds, one after another, and how often the model
// is right.

import { getJson, post, Refusal } from "./api.js";
import { $, element } from "./dom.js";
import { isSame } from "./grids.js";
import { still } from "./painter.js";
import { questionOf, tasksOf } from "./tasks.js";

const MOST_DRAWN = 120;

export class Evaluation {
  /** `onLook(puzzle)` takes one onto the board. */
  constructor(onLook) {
    this.onLook = onLook;
    this.isRunning = false;
    $("evaluate").onclick = () => (this.isRunning ? this.#pause() : this.#run());
    $("evaluate-difficulty").onchange = $("evaluate-attempts").onchange = () => this.#forget();
    $("only-failures").onchange = () => this.#draw();
    $("evaluate-export").onclick = () => this.#export();
  }

  /** Another model: its levels, and no score yet. */
  show(model, kind, levels) {
    Object.assign(this, { model, kind, source: null });
    $("evaluate-difficulty").replaceChildren(
      ...levels.map(([value, name]) => element("option", { value }, name))
    );
    $("evaluate-difficulty").value = levels[1]?.[0] ?? levels[0]?.[0] ?? "";
    $("evaluate-difficulty").hidden = levels.length === 0;
    $("evaluate").disabled = model.isBoard || (levels.length === 0 && !model.tasks);
    $("evaluate-attempts").max = model.max_attempts;
    this.#forget();
  }

  #forget() {
    Object.assign(this, { entries: [], source: null, isRunning: false });
    $("evaluate").textContent = "Start";
    this.#draw();
  }

  /** The board under way still counts: to leave out the slow ones would flatter the model. */
  #pause() {
    this.isRunning = false;
    $("evaluate").textContent = "Pausing";
    $("evaluate").disabled = true;
  }

  async #run() {
    this.isRunning = true;
    $("evaluate").textContent = "Pause";
    $("evaluate-fault").textContent = "";
    const source = (this.source ??= this.model.tasks
      ? taskQuestions(this.model)
      : freshQuestions(this.model.kind, $("evaluate-difficulty").value));
    try {
      while (this.isRunning && source === this.source) {
        const { value, done } = await source.next();
        if (done) break;
        const answer = await post("solve", {
          puzzle: value.puzzle,
          model: this.model.name,
          attempts: Number($("evaluate-attempts").value) || 1
        });
        if (source !== this.source) return;
        const isRight = value.isLabelled
          ? isSame(answer.solution, value.solution)
          : answer.status === "proven";
        this.entries.push({ ...value, answer, isRight });
        this.#draw();
      }
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      $("evaluate-fault").textContent = error.message;
    }
    if (source !== this.source) return;
    this.isRunning = false;
    $("evaluate").textContent = "Go on";
    $("evaluate").disabled = false;
  }

  #draw() {
    const shown = this.entries
      .filter(({ isRight }) => !isRight || !$("only-failures").checked)
      .slice(-MOST_DRAWN)
      .reverse();
    $("scores").replaceChildren(
      ...scoresOf(this.entries).map(([name, value, more]) =>
        element(
          "div",
          { class: "tile" },
          element("dt", {}, name),
          element("dd", {}, value),
          element("dd", { class: "more" }, more)
        )
      )
    );
    $("evaluated").replaceChildren(...shown.map((entry) => (entry.card ??= this.#card(entry))));
    $("evaluate-export").disabled = this.entries.length === 0;
  }

  #card({ puzzle, answer, isRight }) {
    const { grid } = this.kind.read(puzzle);
    const said = this.kind.read(answer.solution)?.grid ?? null;
    const picture =
      this.kind.isApart && said ? this.kind.picture(said, null) : this.kind.picture(grid, said);
    const label = `${isRight ? "Right" : "Wrong"} after ${answer.segments} segments: look at it`;
    return element(
      "li",
      {},
      element(
        "button",
        {
          type: "button",
          class: isRight ? "evaluated" : "evaluated wrong",
          "aria-label": label,
          on: { click: () => this.onLook(puzzle) }
        },
        still(this.kind.board, picture, ""),
        element("span", {}, isRight ? `✓ ${answer.segments}` : "✗")
      )
    );
  }

  #export() {
    const lines = this.entries.map(({ puzzle, solution, answer }) =>
      JSON.stringify({ puzzle, solution, answer })
    );
    const url = URL.createObjectURL(
      new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" })
    );
    element("a", { href: url, download: `${this.model.name}-evaluation.ndjson` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
}

async function* freshQuestions(kind, difficulty) {
  const wanted = new URLSearchParams({ kind, difficulty, held_out: true });
  for (;;) yield getJson(`puzzle?${wanted}`);
}

/** Every held-out pair of every task, once. */
async function* taskQuestions(model) {
  for (const task of await tasksOf(model)) {
    for (const [index, { output }] of task.test.entries())
      yield { puzzle: questionOf(task, index), solution: output, isLabelled: true };
  }
}

function scoresOf(entries) {
  const [count, right] = [entries.length, entries.filter(({ isRight }) => isRight).length];
  if (!count) return [];
  const mean = (valueOf) => entries.reduce((sum, { answer }) => sum + valueOf(answer), 0) / count;
  const ways = entries.map(({ answer }) => answer.route).filter((route) => route?.cost);
  const total = (key) => ways.reduce((sum, route) => sum + route[key], 0);
  return [
    [
      "Right",
      `${right} of ${count}`,
      `${percent(right / count)}; likely ${interval(right, count)} of all such boards`
    ],
    ["Segments", mean(({ total_segments }) => total_segments).toFixed(1), "a board, on average"],
    ["Time", `${mean(({ compute_ms }) => compute_ms).toFixed(0)} ms`, "a board, on average"],
    ...(ways.length
      ? [
          [
            "Cost",
            `${total("cost")}`,
            `where the least is ${total("optimum")}; ${ways.length} ways found`
          ]
        ]
      : [])
  ];
}

/** The 95 % interval of a share, by Wilson. */
function interval(right, count) {
  const [z, share] = [1.96, right / count];
  const middle = (share + z ** 2 / (2 * count)) / (1 + z ** 2 / count);
  const half =
    (z * Math.sqrt((share * (1 - share)) / count + z ** 2 / (4 * count ** 2))) /
    (1 + z ** 2 / count);
  return `${percent(Math.max(0, middle - half))} to ${percent(Math.min(1, middle + half))}`;
}

const percent = (share) => `${(100 * share).toFixed(0)} %`;
