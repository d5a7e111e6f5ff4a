// What the server does now, from /slots and /metrics, each second while somebody looks.

import { getJson, getText, Refusal } from "./api.js";
import { bars, spark } from "./charts.js";
import { $, element } from "./dom.js";
import { buckets, samplesOf, total } from "./metrics.js";

const EVERY_MS = 1000;
const MOST_KEPT = 90;

export class Operations {
  constructor(models) {
    this.models = models;
    this.rates = [];
    this.last = null;
    this.timer = null;
  }

  start() {
    this.stop();
    const beat = async () => {
      await this.#look();
      if (this.timer !== null) this.timer = setTimeout(beat, EVERY_MS);
    };
    this.timer = setTimeout(beat, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  async #look() {
    if (document.hidden) return;
    try {
      const [slots, text] = await Promise.all([getJson("slots"), getText("metrics")]);
      this.#show(slots, samplesOf(text));
      $("operations-fault").textContent = "";
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      $("operations-fault").textContent = error.message;
    }
  }

  #show(slots, samples) {
    this.#note(samples);
    $("tiles").replaceChildren(
      ...tilesOf(slots, samples, this.rates.at(-1)).map(([name, value, more, mood]) =>
        element(
          "div",
          { class: `tile ${mood ?? ""}` },
          element("dt", {}, name),
          element("dd", {}, value),
          element("dd", { class: "more" }, more)
        )
      )
    );
    $("rate-chart").replaceChildren(
      spark(this.rates, "Puzzles a second over the last minute and a half")
    );
    $("lanes").replaceChildren(
      ...lanesOf(slots).map(({ name, lane }) => this.#lane(name, lane, samples))
    );
  }

  /**
   * Counters become a rate over the time since the last look; a counter that fell belongs to a
   * new engine.
   */
  #note(samples) {
    const now = { at: performance.now(), puzzles: total(samples, "hrm_puzzles_total") };
    if (this.last) {
      const rate = (now.puzzles - this.last.puzzles) / ((now.at - this.last.at) / 1000);
      this.rates = [...this.rates.slice(1 - MOST_KEPT), Math.max(0, rate)];
    }
    this.last = now;
  }

  #lane(name, lane, samples) {
    const model = this.models.find((candidate) => candidate.name === name);
    const counts = buckets(samples, "hrm_segments_per_puzzle", name);
    const slots = lane.slots.map((slot) => slotView(slot, model?.max_segments ?? 1));
    const kind = model?.kind === name ? "" : model?.kind;
    return element(
      "section",
      { class: "card lane", "aria-label": `Model ${name}` },
      element(
        "h2",
        {},
        name,
        element(
          "span",
          { class: "quiet" },
          ` ${[kind, model?.precision].filter(Boolean).join(" · ")}`
        )
      ),
      element(
        "p",
        { class: "quiet" },
        `${lane.num_active} of ${lane.num_slots} slots at work, ${lane.num_queued} attempts waiting`
      ),
      element("div", { class: "slots" }, ...slots),
      element("h3", {}, "Segments until a puzzle halted, since the start"),
      counts.some(({ count }) => count)
        ? bars(counts)
        : element("p", { class: "quiet" }, "None has halted yet."),
      element(
        "ul",
        { class: "outcomes" },
        ...Object.entries(lane.completed).map(([outcome, count]) =>
          element("li", {}, element("b", {}, `${count}`), ` ${outcome.replace("_", " ")}`)
        )
      )
    );
  }
}

function tilesOf(slots, samples, rate = 0) {
  const lanes = lanesOf(slots).map(({ lane }) => lane);
  const sum = (name) => lanes.reduce((all, lane) => all + lane[name], 0);
  const megabytes = (name) => `${Math.round(total(samples, name) / 1e6)} MB`;
  const { engine } = slots;
  const losses = engine.losses
    ? `${engine.losses} lost${engine.last_error ? `: ${engine.last_error}` : ""}`
    : `process ${engine.pid ?? "–"}`;
  const steps = sum("steps");
  return [
    ["Engine", engine.state, losses, engine.state === "ready" ? "good" : "bad"],
    ["Attempts", `${sum("num_active")}`, `at work in ${sum("num_slots")} slots`],
    ["Waiting", `${sum("num_queued")}`, `for a slot; open requests: ${slots.waiting}`],
    ["Throughput now", `${rate.toFixed(1)}/s`, "over the last second"],
    sinceStart(samples),
    [
      "A step",
      `${steps ? ((1000 * sum("step_seconds_total")) / steps).toFixed(2) : "–"} ms`,
      `${steps} steps of the batch`
    ],
    [
      "Memory",
      megabytes("hrm_engine_process_resident_memory_bytes"),
      `engine; server ${megabytes("process_resident_memory_bytes")}`
    ]
  ];
}

/** How many puzzles ended since the server's start, and how many a proof stopped. */
function sinceStart(samples) {
  const startedAt = total(samples, "process_start_time_seconds");
  const minutes = Math.max(0, Math.round((Date.now() / 1000 - startedAt) / 60));
  const proven = total(samples, "hrm_puzzles_total", { outcome: "proven" });
  return [
    "Since the start",
    `${total(samples, "hrm_puzzles_total")}`,
    `puzzles in ${minutes} min; ${proven} stopped by a proof`
  ];
}

function slotView(slot, mostSegments) {
  const isFree = slot.job_id === null;
  const words = isFree
    ? "free"
    : `segment ${slot.segments}, margin ${slot.margin.toFixed(1).replace("-", "−")}`;
  const meter = element("span", { class: "meter" });
  meter.style.setProperty("--share", isFree ? 0 : slot.segments / mostSegments);
  return element(
    "div",
    { class: `slot ${isFree ? "free" : "busy"}` },
    element("b", {}, `Slot ${slot.slot}`),
    meter,
    element("span", {}, words)
  );
}

/** The lanes that the engine has shown. */
const lanesOf = ({ lanes }) => lanes.filter(({ lane }) => lane !== null);
