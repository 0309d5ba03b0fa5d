// Durations in the pipeline's histograms: bucket i is above 2^((i-1)/8) ms and up to 2^(i/8) ms. They add up exactly.

export function merged(histograms) {
  const sum = new Map();
  for (const histogram of histograms) {
    for (const [bucket, number] of Object.entries(histogram ?? {})) {
      sum.set(Number(bucket), (sum.get(Number(bucket)) ?? 0) + Number(number));
    }
  }
  return sum;
}

/** A percentile in ms as docs/tables.md defines it, so that it equals the tables' own; null if nothing was counted. */
export function percentile(histogram, share) {
  const buckets = [...histogram].sort(([a], [b]) => a - b);
  const total = buckets.reduce((sum, [, number]) => sum + number, 0);
  const rank = Math.ceil(total * share);
  let seen = 0;
  for (const [bucket, number] of buckets) {
    seen += number;
    if (seen >= rank) return 2 ** ((bucket - 0.5) / 8);
  }
  return null;
}
