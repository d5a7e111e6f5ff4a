// Solving, and watching it: asks the server, plays what comes segment by segment, and says what
// came out.

import { Refusal, post, streamed } from "./api.js";
import { Answer } from "./answer.js";
import { Attempts } from "./attempts.js";
import { Curve } from "./curve.js";
import { $, element } from "./dom.js";
import { Player, Run } from "./run.js";
import { figuresOf, verdictOf } from "./verdict.js";

export class Thinking {
  /**
   * Solves what `editor` holds with `model`. `onAnswer(question, answer)` hears of each answer,
   * `onForget()` of its end.
   */
  constructor(model, kind, editor, { onAnswer, onForget }) {
    Object.assign(this, { model, kind, editor, onAnswer, onForget });
    this.run = null;
    this.chosen = null;
    this.abort = null;
    this.player = new Player({
      onMove: (segment) => this.#show(segment),
      onEnd: () => this.#conclude()
    });
    this.curve = new Curve($("curve"), model.halting.threshold);
    this.attempts = new Attempts($("attempts"), kind, (attempt) => this.#choose(attempt));
    this.apart = kind.isApart
      ? new Answer(
          kind,
          () => editor.brush,
          () => this.offerDrawn()
        )
      : null;
    $("answer-board").replaceChildren(...(this.apart ? [this.apart.node] : []));
    $("segment").oninput = () => {
      this.player.stop();
      this.#show(Number($("segment").value));
    };
    $("play").onclick = () => this.player.play(this.run, { isPaced: true });
    this.forget();
  }

  /** Back to the question alone. */
  forget() {
    this.abort?.abort();
    this.player.stop();
    this.run = null;
    this.chosen = null;
    this.isOver = false;
    this.#busy(false);
    this.#say("", "", "");
    this.attempts.forget();
    this.curve.draw(new Map(), null, 0);
    $("playback").hidden = true;
    $("figures").replaceChildren();
    $("margins").hidden = true;
    $("intro").hidden = false;
    this.apart?.forget(this.editor.state.grid);
    this.editor.drawAnswer(null);
    this.editor.draw();
    this.onForget();
  }

  /** The answer and how the shown attempt came to it; null without an answer. */
  get result() {
    const { run, model, kind, asked } = this;
    if (!run?.answer) return null;
    return {
      model,
      kind,
      grid: asked.grid,
      solution: run.answer.solution,
      frames: run.attempts.get(this.chosen) ?? []
    };
  }

  /** The segment after the last answer's; the first if that answer ended of itself. */
  get nextSegment() {
    const { halted_by: haltedBy, segments } = this.run?.answer ?? {};
    const goesOn = haltedBy === "max_segments" && segments < this.model.max_segments;
    return goesOn ? segments + 1 : 1;
  }

  async solve(options, isPaced) {
    if (this.abort) return;
    this.forget();
    this.numAttempts = options.attempts ?? 1;
    this.editor.board.absolve();
    $("intro").hidden = true;
    this.#busy(true);
    this.#say("busy", "Thinking …", "");
    this.#look();
    const { question } = this.editor;
    this.asked = { question, grid: this.editor.state.grid, label: this.editor.state.label };
    this.run = new Run();
    this.player.play(this.run, { isPaced });
    await this.#listen({ puzzle: question, model: this.model.name, ...options });
  }

  /** An answer that a person has drawn goes into the set like a proven one: they vouch for it. */
  offerDrawn() {
    if (this.apart?.isDrawn)
      this.onAnswer(this.editor.question, { solution: this.apart.grid, verified: null });
  }

  stop() {
    if (!this.abort) return;
    this.forget();
    this.#say("", "Stopped", "The puzzle was cancelled.");
  }

  /**
   * Lets the server say what is wrong with a puzzle. If nothing of it is on the board, no cell is
   * to blame.
   */
  async explain(puzzle, isDrawn) {
    try {
      await post("solve", { puzzle, model: this.model.name, max_segments: 1 });
      this.#say(
        "bad",
        "Not drawn",
        "The server reads this, but this page cannot draw it; send it with hrm-solve."
      );
    } catch (error) {
      if (error.cell && !isDrawn) this.tell("bad", "Not a puzzle", this.#expectation());
      else this.#refuse(error);
    }
  }

  #expectation() {
    const { rows, cols, frames } = this.kind;
    const bound = frames ? "at most " : "";
    const size = `${bound}${rows} lines of ${cols} cells`;
    return `This text is not a board of ${this.model.name}, which has ${size}.`;
  }

  async #listen(body) {
    const abort = this.abort;
    const run = this.run;
    try {
      for await (const { name, data } of streamed(body, abort.signal)) {
        if (name === "segment") run.note(data);
        if (name === "answer") run.end(data);
      }
      if (!this.player.run) this.#conclude(); // somebody took the slider before the answer came
    } catch (error) {
      if (abort.signal.aborted) return;
      if (!(error instanceof Refusal)) throw error;
      this.#refuse(error);
    }
  }

  #show(segment) {
    const run = this.run;
    this.chosen ??= [...run.attempts.keys()][0];
    const frame = run.frame(this.chosen, segment);
    this.#draw(frame.solution, { changed: frame.changed, beat: segment });
    this.curve.draw(run.attempts, this.chosen, segment);
    this.attempts.draw(run, this.asked.grid, this.chosen, segment);
    $("playback").hidden = false;
    $("margins").hidden = run.length < 2; // one point is not a curve
    $("segment").max = run.length;
    $("segment").value = segment;
    $("segment-now").textContent = `${segment}`;
    this.segment = segment;
  }

  #draw(solution, flash = {}) {
    if (!this.apart) {
      this.editor.draw(solution, flash);
      return;
    }
    this.apart.show(solution, flash);
    if (this.isOver && this.asked.label) this.apart.compare(this.asked.label, flash);
  }

  /** Another attempt on the board, at the segment that is shown. */
  #choose(attempt) {
    this.chosen = attempt;
    this.#show(this.segment);
  }

  #conclude() {
    const { answer, elapsedMs, winner } = this.run;
    this.isOver = true;
    if (winner !== null) this.#choose(winner);
    else this.#draw(answer.solution);
    const { mood, title, text } = verdictOf(answer, this.kind, this.asked.label);
    this.#busy(false);
    this.#say(mood, title, text);
    if (answer.route?.cost && !this.apart) this.editor.draw(answer.solution, {}, answer.route);
    const more = Math.min(16, this.model.max_attempts);
    $("try-more").hidden = mood !== "bad" || this.numAttempts >= more;
    $("try-more").value = more;
    $("try-more").textContent = `Try ${more} attempts`;
    $("figures").replaceChildren(
      ...figuresOf(answer, this.kind, this.model, elapsedMs).flatMap(([name, value]) => [
        element("dt", {}, name),
        element("dd", {}, value)
      ])
    );
    this.#look();
    this.onAnswer(this.asked.question, mood === "bad" ? { ...answer, verified: false } : answer);
  }

  /** Scrolls the answer and the verdict into view; on a laptop they already are. */
  #look() {
    const answer = this.apart ? $("answer-board") : $("board");
    for (const node of [answer, $("verdict")]) node.scrollIntoView({ block: "nearest" });
  }

  #refuse(refusal) {
    this.forget();
    $("intro").hidden = true;
    this.#say(
      "bad",
      refusal.reason === "bad-puzzle" ? "Not a puzzle" : "No answer",
      refusal.message
    );
    this.#look();
    this.editor.board.accuse(refusal.cell, refusal.message);
  }

  #busy(isBusy) {
    this.abort = isBusy ? new AbortController() : null;
    const [shown, other] = isBusy ? [$("stop"), $("solve")] : [$("solve"), $("stop")];
    const hadFocus = document.activeElement === other;
    [shown.hidden, other.hidden] = [false, true];
    if (hadFocus) shown.focus();
    $("thinking").setAttribute("aria-busy", `${isBusy}`);
  }

  /**
   * Says something that is not about an answer of the model, with commands for a shell if there
   * are any.
   */
  tell(mood, title, text, commands = "") {
    $("intro").hidden = true;
    this.#say(mood, title, text);
    $("verdict-commands").textContent = commands;
    $("verdict-commands").hidden = !commands;
  }

  #say(mood, title, text) {
    $("try-more").hidden = true;
    $("verdict-commands").hidden = true;
    $("verdict").className = `verdict ${mood}`;
    $("verdict-title").textContent = title;
    $("verdict-text").textContent = text;
  }
}
