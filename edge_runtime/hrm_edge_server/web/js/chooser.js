// The list of models: by kind of puzzle, each with the size of its board and how often it is right.

import { $, element } from "./dom.js";
import { groupOf } from "./kinds/index.js";
import { percent, recordOf } from "./record.js";

export class Chooser {
  /**
   * `boards` are what no model here solves; `onChoose(model)` hears of the one that a person
   * chooses.
   */
  constructor(models, boards, onChoose) {
    this.options = new Map(models.concat(boards).map((model) => [optionOf(model), model]));
    const groups = new Map();
    for (const [option, model] of this.options) {
      const label = model.isBoard ? "Draw only, no model here" : groupOf(model);
      if (!groups.has(label)) groups.set(label, element("optgroup", { label }));
      groups.get(label).append(option);
    }
    $("model").replaceChildren(...groups.values());
    $("model").onchange = () => onChoose(this.chosen);
  }

  get chosen() {
    return this.options.get($("model").selectedOptions[0]);
  }

  choose(model) {
    for (const [option, candidate] of this.options) option.selected = candidate === model;
  }
}

function optionOf(model) {
  const { name, rows, cols } = model;
  const record = recordOf(model);
  const words = [name];
  if (rows) words.push(`${rows}×${cols}`);
  if (record) words.push(`${percent(record.solved)} right`);
  return element("option", { value: model.name }, words.join(" · "));
}
