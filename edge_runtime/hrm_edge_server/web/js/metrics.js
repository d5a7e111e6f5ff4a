// Prometheus' text format, as far as this page reads it.

/** The samples of each metric: name to a list of {labels, value}. */
export function samplesOf(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const [, name, labels = "", value] = found;
    if (!samples.has(name)) samples.set(name, []);
    samples
      .get(name)
      .push({ labels: labelsOf(labels), value: Number(value.replace("Inf", "Infinity")) });
  }
  return samples;
}

const labelsOf = (text) =>
  Object.fromEntries(
    [...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value])
  );

/** The sum over all samples of a metric whose labels fit. */
export function total(samples, name, labels = {}) {
  const fits = (sample) =>
    Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
  return (samples.get(name) ?? []).filter(fits).reduce((sum, { value }) => sum + value, 0);
}

/** How many fell into each bucket of a histogram: [{limit, count}], of the model named. */
export function buckets(samples, name, model) {
  const own = (samples.get(`${name}_bucket`) ?? []).filter(
    ({ labels }) => labels.model === model && labels.le !== "+Inf"
  );
  return own.map(({ labels, value }, index) => ({
    limit: Number(labels.le),
    count: value - (own[index - 1]?.value ?? 0)
  }));
}
