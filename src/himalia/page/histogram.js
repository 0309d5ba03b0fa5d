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

/** The duration that a share of them does not exceed, in ms; null if there are none. */
export function percentile(histogram, share) {
  const buckets = [...histogram].sort(([a], [b]) => a - b);
  const total = buckets.reduce((sum, [, number]) => sum + number, 0);
  let seen = 0;
  for (const [bucket, number] of buckets) {
    seen += number;
    if (seen >= total * share) return 2 ** (bucket / 8);
  }
  return null;
}
