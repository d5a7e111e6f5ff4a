// One puzzle being solved: what every attempt said after every segment, and at last the answer.

export class Run {
  constructor() {
    this.attempts = new Map(); // by the server's number, in the order of their first segment
    this.answer = null;
    this.elapsedMs = 0;
    this.began = performance.now();
  }

  /** Notes one `segment` event. */
  note({ attempt, segment, solution, changed, margin, verified }) {
    if (!this.attempts.has(attempt)) this.attempts.set(attempt, []);
    this.attempts
      .get(attempt)
      .push({ segment, solution, changed: new Set(changed), margin, verified });
  }

  end(answer) {
    this.answer = answer;
    this.elapsedMs = performance.now() - this.began;
  }

  /** How many segments the longest attempt has run. */
  get length() {
    return Math.max(0, ...[...this.attempts.values()].map((frames) => frames.at(-1).segment));
  }

  /**
   * What an attempt said at that segment, or last before it: a server may leave out segments for
   * a slow reader.
   */
  frame(attempt, segment) {
    const frames = this.attempts.get(attempt) ?? [];
    return frames.findLast((frame) => frame.segment <= segment) ?? frames[0] ?? null;
  }

  /** The attempt whose last words are the answer. */
  get winner() {
    const said = JSON.stringify(this.answer?.solution);
    const isIt = ([, frames]) => JSON.stringify(frames.at(-1).solution) === said;
    const ended = [...this.attempts].filter(isIt);
    return (ended.find(([, frames]) => frames.at(-1).verified) ?? ended[0] ?? [null])[0];
  }
}

/**
 * Walks through the segments of a run at a pace that eyes can follow, and never far behind the
 * server. `onMove(segment)` draws; `onEnd()` hears that the last one is drawn and no more will
 * come.
 */
export class Player {
  constructor({ onMove, onEnd }) {
    this.heard = { onMove, onEnd };
    this.stop();
  }

  /** Plays `run` from its first segment, as far as it has come. */
  play(run, { isPaced, frameMs = 90 }) {
    this.stop();
    this.run = run;
    this.segment = 0;
    const beat = () => {
      this.#advance(isPaced);
      if (this.run) this.timer = setTimeout(beat, isPaced ? frameMs : 16);
    };
    beat();
  }

  stop() {
    clearTimeout(this.timer);
    this.run = null;
  }

  #advance(isPaced) {
    const behind = this.run.length - this.segment;
    if (behind > 0) {
      this.segment += isPaced ? Math.ceil(behind / 14) : behind;
      this.heard.onMove(this.segment);
    } else if (this.run.answer) {
      this.stop();
      this.heard.onEnd();
    }
  }
}
