// What a person takes away: a link to the puzzle, the answer as text, and a picture or a video of
// the thinking.

import { copy } from "./clipboard.js";
import { $, element } from "./dom.js";
import { filmOf, FORMAT } from "./film.js";
import { stripOf } from "./strip.js";

export class Share {
  /** `linkOf()` returns the address of the puzzle on the board. */
  constructor(linkOf) {
    this.linkOf = linkOf;
    $("copy-link").onclick = () => this.#copy(this.linkOf(), "The link is copied.");
    $("copy-answer").onclick = () => this.#copy(answerText(this.result), "The answer is copied.");
    $("save-picture").onclick = () => this.#savePicture();
    $("save-video").onclick = () => this.#saveVideo();
    $("save-video").hidden = !FORMAT;
    this.offer(null);
  }

  /**
   * What was thought last: {model, kind, grid, solution, frames}; null while there is no answer.
   */
  offer(result) {
    this.result = result;
    $("copy-answer").disabled = !result?.solution.length;
    for (const name of ["save-picture", "save-video"]) $(name).disabled = !result?.frames.length;
    $("shared").textContent = "";
  }

  async #copy(text, done) {
    const isCopied = await copy(text);
    $("shared").textContent = isCopied ? done : "This browser allows no copying here.";
  }

  #savePicture() {
    const { model } = this.result;
    stripOf(this.result).toBlob((blob) => {
      save(blob, `${model.name}.png`);
      $("shared").textContent = "The picture is saved.";
    }, "image/png");
  }

  async #saveVideo() {
    const { result } = this;
    const [, ending] = FORMAT;
    $("save-video").disabled = true;
    $("shared").textContent = "Recording …";
    const film = await filmOf(result);
    save(film, `${result.model.name}.${ending}`);
    if (this.result !== result) return; // another puzzle since
    $("save-video").disabled = false;
    $("shared").textContent = `The video is saved (${ending}).`;
  }
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function answerText({ kind, solution }) {
  return kind.isApart ? JSON.stringify(solution) : kind.written({ grid: solution });
}
