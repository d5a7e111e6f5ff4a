// Two small charts: bars for counts, and a line for the last minute.

import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [640, 140];
const EDGE = 22;  // room for the numbers below

/** Bars of [{limit, count}], the number of segments below each. */
export function bars(counts) {
  const shown = counts.slice(counts.findIndex(({ limit }) => limit > 0));
  const most = Math.max(1, ...shown.map(({ count }) => count));
  const width = WIDTH / Math.max(8, shown.length);
  const every = Math.ceil(shown.length / 16);
  const all = shown.reduce((sum, { count }) => sum + count, 0);
  const parts = shown.flatMap(({ limit, count }, index) => {
    const height = ((HEIGHT - EDGE - 16) * count) / most;
    const middle = (index + 0.5) * width;
    const isNamed = index % every === 0 || index === shown.length - 1;
    return [
      svg("rect", { class: "bar", x: index * width + width * 0.1, y: HEIGHT - EDGE - height, width: width * 0.8, height, rx: Math.min(3, width / 4) },
        svg("title", {}, `${count} after ${limit}`)),
      ...(isNamed ? [svg("text", { class: "tick", x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, `${limit}`)] : []),
      ...(count && width > 24 ? [svg("text", { class: "tick", x: middle, y: HEIGHT - EDGE - height - 4, "text-anchor": "middle" }, `${count}`)] : []),
    ];
  });
  const floor = svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - EDGE, y2: HEIGHT - EDGE });
  const label = `${all} puzzles, by the segments until they halted`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label }, floor, ...parts);
}

/** A line through the values, the newest at the right. */
export function spark(values, label) {
  const most = Math.max(1, ...values);
  const height = HEIGHT - EDGE;
  const x = (index) => WIDTH - (values.length - 1 - index) * (WIDTH / 89);
  const points = values.map((value, index) => `${x(index).toFixed(1)} ${(height - (height - 14) * (value / most)).toFixed(1)}`);
  const line = points.length ? `M${points.join("L")}` : "";
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: height, y2: height }),
    ...(line ? [svg("path", { class: "under", d: `${line}L${WIDTH} ${height}L${x(0).toFixed(1)} ${height}Z` }), svg("path", { class: "margin", d: line })] : []),
    svg("text", { class: "tick", x: 0, y: 12 }, `${most.toFixed(most < 10 ? 1 : 0)}/s`),
    svg("text", { class: "tick", x: 0, y: HEIGHT - 6 }, "90 s ago"),
    svg("text", { class: "tick", x: WIDTH, y: HEIGHT - 6, "text-anchor": "end" }, "now"));
}
