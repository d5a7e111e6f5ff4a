// Two small charts: bars for counts, and a line for the last minute.

import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [640, 140];
const EDGE = 22; // room for the numbers below

/** 1 and at most eight round numbers up to `count`. */
export function ticksOf(count) {
  const step =
    [1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 500, 1000].find((candidate) => count / candidate <= 8) ??
    count;
  const multiples = Array.from(
    { length: Math.floor(count / step) },
    (_, index) => (index + 1) * step
  );
  return [...new Set([1, ...multiples])];
}

/** Bars of [{limit, count}] from 1 segment on. */
export function bars(counts) {
  const shown = counts.filter(({ limit }) => limit > 0);
  const most = Math.max(...shown.map(({ count }) => count));
  const width = WIDTH / Math.max(12, shown.length);
  const all = shown.reduce((sum, { count }) => sum + count, 0);
  const parts = shown.map(({ limit, count }, index) => {
    const height = ((HEIGHT - EDGE - 16) * count) / most;
    const [x, y] = [index * width + width * 0.1, HEIGHT - EDGE - height];
    const title = svg("title", {}, `${count} after ${limit}`);
    return svg(
      "rect",
      { class: "bar", x, y, width: width * 0.8, height, rx: Math.min(3, width / 4) },
      title
    );
  });
  const ticks = ticksOf(shown.length).map((tick) =>
    svg(
      "text",
      { class: "tick", x: (tick - 0.5) * width, y: HEIGHT - 6, "text-anchor": "middle" },
      `${tick}`
    )
  );
  const floor = svg("line", {
    class: "axis",
    x1: 0,
    x2: WIDTH,
    y1: HEIGHT - EDGE,
    y2: HEIGHT - EDGE
  });
  const label = `Puzzles by the segments until they halted: ${all}`;
  const top = svg("text", { class: "tick", x: 0, y: 12 }, `${most}`);
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label },
    floor,
    ...parts,
    ...ticks,
    top
  );
}

/** A line through the values, the newest at the right. */
export function spark(values, label) {
  const most = Math.max(1, ...values);
  const height = HEIGHT - EDGE;
  const x = (index) => WIDTH - (values.length - 1 - index) * (WIDTH / 89);
  const points = values.map(
    (value, index) =>
      `${x(index).toFixed(1)} ${(height - (height - 14) * (value / most)).toFixed(1)}`
  );
  const line = points.length ? `M${points.join("L")}` : "";
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: height, y2: height }),
    ...(line
      ? [
          svg("path", {
            class: "under",
            d: `${line}L${WIDTH} ${height}L${x(0).toFixed(1)} ${height}Z`
          }),
          svg("path", { class: "margin", d: line })
        ]
      : []),
    svg("text", { class: "tick", x: 0, y: 12 }, `${most.toFixed(most < 10 ? 1 : 0)}/s`),
    svg("text", { class: "tick", x: 0, y: HEIGHT - 6 }, "90 s ago"),
    svg("text", { class: "tick", x: WIDTH, y: HEIGHT - 6, "text-anchor": "end" }, "now")
  );
}
