// Figures for Plotly, in the page's own colours.

const LIGHT = { ink: "#3c3c46", grid: "#e4e4ea", series: ["#5b5bd6", "#e07a3f", "#2a9d8f", "#c2528b", "#8a8f3c", "#4b8fd0", "#9a9aa5"], bad: "#cf3f4f" };
const DARK = { ink: "#c9c9d2", grid: "#2f2f39", series: ["#8e8cf0", "#f2a65a", "#5cc7b8", "#e58bb9", "#c3c76a", "#7db7ec", "#77777f"], bad: "#f0737f" };
const SERIES_MAX = 6;

// Where there is no room beside the title, the legend goes below.
const NARROW = { legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, traceorder: "normal" }, margin: { l: 44, r: 8, t: 44, b: 20 } };

/** Plotly knows no zones and shows a time as it is written; the rest of the page has times as they are here. */
function hereAt(ts) {
  const at = new Date(ts);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** An axis of times that is never shorter than this, so that the first minutes do not look like a wall. */
function timeAxis(times, stepMs, leastMs) {
  const axis = { type: "date", nticks: 6 };
  const [first, last] = [times[0], times.at(-1)].map((ts) => Date.parse(ts));
  if (!times.length || last - first >= leastMs) return axis;
  return { ...axis, range: [hereAt(last - leastMs), hereAt(last + stepMs)] };
}

/** Ticks at whole numbers: nothing happens half a time. */
const wholeTicks = (most) => (most <= 5 ? { dtick: 1 } : {});

const coloursOf = (theme) => (theme === "dark" ? DARK : LIGHT);

function layoutOf(theme, title, more = {}) {
  const { ink, grid, series } = coloursOf(theme);
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, fixedrange: true };
  return {
    title: { text: title, font: { size: 14, color: ink }, x: 0.012, xref: "container", xanchor: "left", y: 0.97, yanchor: "top" },
    font: { family: "Inter, system-ui, sans-serif", size: 12, color: ink },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: series,
    margin: { l: 44, r: 12, t: 66, b: 36 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" }, hovermode: "closest",
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, rangemode: "tozero", ...more.yaxis },
  };
}

/** Messages a minute, the busiest topics by name and the rest together. */
export function throughput(theme, rows) {
  const totals = new Map();
  for (const { topic, messages } of rows) totals.set(topic, (totals.get(topic) ?? 0) + messages);
  const named = [...totals].sort(([, a], [, b]) => b - a).slice(0, SERIES_MAX).map(([topic]) => topic);
  const series = new Map([...named, ...(totals.size > SERIES_MAX ? ["others"] : [])].map((name) => [name, new Map()]));
  for (const { topic, minute, messages } of rows) {
    const points = series.get(named.includes(topic) ? topic : "others");
    points.set(minute, (points.get(minute) ?? 0) + messages);
  }
  const data = [...series].map(([name, points]) => {
    const minutes = [...points.keys()].sort();
    return { type: "bar", name: shortTopic(name), width: 48_000, x: minutes.map(hereAt), y: minutes.map((minute) => points.get(minute)), hovertemplate: "%{y:,} at %{x|%H:%M}<extra>%{fullData.name}</extra>" };
  });
  return { data, layout: layoutOf(theme, "Messages a minute", { barmode: "stack", bargap: 0.15, xaxis: timeAxis(rows.map(({ minute }) => minute).sort(), 60_000, 15 * 60_000) }), narrow: NARROW };
}

const shortTopic = (name) => (name.startsWith("kernels.") ? `kernel ${name.slice(8, 16)}` : name);

/** How long executions took, by kernel: a list of `{kernel, p50, p95, p99}` in ms. */
export function percentiles(theme, kernels) {
  const data = ["p50", "p95", "p99"].map((name, index) => ({
    type: "scatter", mode: "markers", name, marker: { size: 13, symbol: ["circle", "diamond", "square"][index] }, x: kernels.map(({ kernel }) => kernel.slice(0, 8)), y: kernels.map((one) => one[name]),
    hovertemplate: `%{y:.3s} ms<extra>%{x} ${name}</extra>`,
  }));
  return { data, layout: layoutOf(theme, "How long executions take, ms", { xaxis: { type: "category", range: [-0.6, kernels.length - 0.4] }, yaxis: { type: "log", rangemode: "normal", dtick: 1, exponentformat: "none" } }), narrow: NARROW };
}

/** How often each error ended an execution. */
export function errorCounts(theme, errors) {
  const shown = errors.slice(0, 8).reverse();
  const most = Math.max(...shown.map(({ count }) => count));
  const data = [{ type: "bar", orientation: "h", width: 0.5, x: shown.map(({ count }) => count), y: shown.map(({ ename }) => ename), marker: { color: coloursOf(theme).bad }, hovertemplate: "%{x:,}<extra>%{y}</extra>" }];
  return { data, layout: layoutOf(theme, "Errors", { showlegend: false, bargap: 0.4, yaxis: { type: "category", rangemode: "normal", range: [Math.min(-0.5, shown.length - 4.5), shown.length - 0.5] }, xaxis: { rangemode: "tozero", tickformat: ",d", ...wholeTicks(most) } }), narrow: NARROW };
}

/** Executions and failures in each five minutes. */
export function executions(theme, rows) {
  const sums = new Map();
  for (const { window_start, executions: all, failures } of rows) {
    const sum = sums.get(window_start) ?? { ok: 0, failures: 0 };
    sum.ok += all - failures;
    sum.failures += failures;
    sums.set(window_start, sum);
  }
  const windows = [...sums.keys()].sort();
  const bar = (name, key, colour) => ({ type: "bar", name, width: 240_000, x: windows.map(hereAt), y: windows.map((at) => sums.get(at)[key]), marker: { color: colour } });
  const { series, bad } = coloursOf(theme);
  return { data: [bar("ok", "ok", series[2]), bar("failed", "failures", bad)], layout: layoutOf(theme, "Executions in five minutes", { barmode: "stack", bargap: 0.15, xaxis: timeAxis(windows, 300_000, 60 * 60_000) }), narrow: NARROW };
}
