// What a person takes away: a link to the puzzle, the answer as text, and a picture of the thinking.

import { copy } from "./clipboard.js";
import { $, element } from "./dom.js";
import { stripOf } from "./strip.js";

export class Share {
  /** `linkOf()` returns the address of the puzzle on the board. */
  constructor(linkOf) {
    this.linkOf = linkOf;
    $("copy-link").onclick = () => this.#copy(this.linkOf(), "The link is copied.");
    $("copy-answer").onclick = () => this.#copy(answerText(this.result), "The answer is copied.");
    $("save-picture").onclick = () => this.#save();
    this.offer(null);
  }

  /** What was thought last: {model, kind, grid, solution, frames}; null while there is no answer. */
  offer(result) {
    this.result = result;
    $("copy-answer").disabled = !result?.solution.length;
    $("save-picture").disabled = !result?.frames.length;
    $("shared").textContent = "";
  }

  async #copy(text, done) {
    const isCopied = await copy(text);
    $("shared").textContent = isCopied ? done : "This browser allows no copying here.";
  }

  #save() {
    const { model } = this.result;
    stripOf(this.result).toBlob((blob) => {
      const url = URL.createObjectURL(blob);
      element("a", { href: url, download: `${model.name}.png` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      $("shared").textContent = "The picture is saved.";
    }, "image/png");
  }
}

function answerText({ kind, solution }) {
  return kind.isApart ? JSON.stringify(solution) : kind.written({ grid: solution });
}
