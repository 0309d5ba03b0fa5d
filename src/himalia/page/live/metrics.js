// Prometheus' text format, as far as this page needs it.

/** The samples of a metrics text: a list of `{name, labels, value}`. */
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line.match(/^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    samples.push({ name: found[1], labels, value: found[3] === "+Inf" ? Infinity : Number(found[3]) });
  }
  return samples;
}

export const valueOf = (samples, name) => samples.find((sample) => sample.name === name)?.value;

/** The bound below which a share of the observations lies; null if there were none. */
export function quantile(samples, name, share) {
  const buckets = samples.filter((sample) => sample.name === `${name}_bucket`)
    .map(({ labels, value }) => ({ bound: labels.le === "+Inf" ? Infinity : Number(labels.le), value }));
  const total = buckets.at(-1)?.value ?? 0;
  if (!total) return null;
  const found = buckets.findIndex((bucket) => bucket.value >= total * share);
  // Beyond the last bound nothing more is known than that bound.
  return Number.isFinite(buckets[found].bound) ? buckets[found].bound : buckets.at(-2).bound;
}

const RATE_SECONDS = 10; // as the server's own rates have it

export const sumOf = (counts) => counts.reduce((sum, one) => sum + one, 0);

/** Messages per second of a topic, over the last ten seconds. */
export const rateOf = (topic) => sumOf(topic.last_minute.slice(-RATE_SECONDS)) / RATE_SECONDS;
