// What the status page draws: figures as text, lines over time, histograms and bars.
//
// Everything from the daemon is text: it is put on the page by textContent and by attributes of charts only.
import { quantile, shorten } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";
// A chart begins with the first point, but is never narrower than the first of these, nor wider than the second.
const SPAN_SECONDS = [60, 300];
// Points of a line.
export const HISTORY_MAX = 150;
// Figures of a point of one export: time and six others.
const POINT = 7;

export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
// Puts a figure on the page, with the number itself beside the text.
export function put(node, kind, value) {
  const known = value !== null && value !== undefined;
  write(node, known ? shorten[kind](value) : "–");
  node.dataset.value = known ? String(value) : "";
  node.classList.toggle("zero", value === 0);
}
export const figure = (name, kind, value) => put(document.querySelector(`[data-figure="${name}"]`), kind, value);

export function make(tag, name, parent) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (parent) parent.append(node);
  return node;
}
export function makeSvg(tag, name, parent, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  if (name) node.setAttribute("class", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

// ---- Lines over time.

export class Ring {
  constructor() {
    this.points = new Float64Array(HISTORY_MAX * POINT);
    this.next = 0;
    this.length = 0;
  }
  push(point) {
    this.points.set(point, this.next * POINT);
    this.next = (this.next + 1) % HISTORY_MAX;
    this.length = Math.min(this.length + 1, HISTORY_MAX);
  }
  // Time and one figure of each point, oldest first.
  line(field) {
    const line = [];
    for (let i = 0; i < this.length; i += 1) {
      const from = ((this.next - this.length + i + HISTORY_MAX) % HISTORY_MAX) * POINT;
      line.push([this.points[from], this.points[from + field]]);
    }
    return line;
  }
}

// Draws lines of points, each a time and a value, up to the time `end`. Points further apart than `gap` seconds are not joined. Returns the
// highest value.
export function drawLines(svg, lines, end, width, height, gap) {
  const first = Math.min(end, ...lines.map(([, line]) => (line.length ? line[0][0] : end)));
  const span = Math.max(SPAN_SECONDS[0], Math.min(SPAN_SECONDS[1], end - first));
  const highest = Math.max(0, ...lines.flatMap(([, line]) => line.map(([, value]) => (value === null || Number.isNaN(value) ? 0 : value))));
  lines.forEach(([name, line], i) => {
    let path = "";
    let drawing = false;
    let last = null;
    for (const [time, value] of line) {
      const x = width * (1 - (end - time) / span);
      if (x < 0 || value === null || Number.isNaN(value)) {
        drawing = false;
        continue;
      }
      // A gap in time, as of a tab in the background, is a gap in the line.
      if (last !== null && time - last > gap) drawing = false;
      path += `${drawing ? "L" : "M"}${x.toFixed(1)} ${(height - 1 - ((height - 2) * value) / (highest || 1)).toFixed(1)}`;
      drawing = true;
      last = time;
    }
    const node = svg.children[i] || makeSvg("path", name, svg);
    node.setAttribute("d", path || "M0 0");
  });
  return highest;
}
// The text of a chart for those who do not see it.
export function label(svg, text) {
  if (svg.getAttribute("aria-label") !== text) svg.setAttribute("aria-label", text);
}

const bucketName = (bounds, i) => (i < bounds.length ? "≤ " + shorten.nanos(bounds[i]) : "> " + shorten.nanos(bounds[bounds.length - 1]));
// A histogram with its quantiles, as a figure; kept and filled again.
export function histogram(parent, name) {
  const box = make("figure", "", parent);
  const title = make("figcaption", "", box);
  write(title, name);
  const total = make("span", "max", title);
  const svg = makeSvg("svg", "chart", box, { viewBox: "0 0 260 60", preserveAspectRatio: "none", role: "img" });
  const ticks = make("div", "ticks", box);
  const line = make("p", "quantiles", box);
  const quantiles = {};
  for (const key of ["mean", "p50", "p99"]) {
    const part = make("small", "", line);
    part.append(key + " ");
    quantiles[key] = make("span", "", part);
  }
  return { box, total, svg, ticks, quantiles };
}
export function fill(chart, name, buckets, nanos, bounds) {
  const total = buckets.reduce((sum, count) => sum + count, 0);
  const highest = Math.max(1, ...buckets);
  const step = 260 / (bounds.length + 1);
  if (chart.ticks.children.length === 0) for (const i of [0, 3, 6, 9, 12]) write(make("span", "", chart.ticks), bucketName(bounds, i).replace("≤ ", ""));
  for (let i = 0; i <= bounds.length; i += 1) {
    const count = buckets[i] || 0;
    const bar = chart.svg.children[i] || makeSvg("rect", "", chart.svg);
    if (!bar.firstChild) makeSvg("title", "", bar);
    const height = count === 0 ? 1 : Math.max(2, (58 * count) / highest);
    for (const [key, value] of [["x", i * step + 1], ["width", step - 2], ["y", 59 - height], ["height", height]]) bar.setAttribute(key, value.toFixed(1));
    bar.setAttribute("class", count === 0 ? "none" : "");
    bar.dataset.value = String(count);
    write(bar.firstChild, `${bucketName(bounds, i)}: ${count}`);
  }
  put(chart.total, "count", total);
  put(chart.quantiles.mean, "nanos", total === 0 ? null : nanos / total);
  put(chart.quantiles.p50, "nanos", quantile(0.5, buckets, bounds));
  put(chart.quantiles.p99, "nanos", quantile(0.99, buckets, bounds));
  label(chart.svg, `${name}: ${total} requests by latency`);
}

// Parts of a whole, side by side.
export function bar(svg, parts) {
  let x = 0;
  parts.forEach(([name, share], i) => {
    const node = svg.children[i] || makeSvg("rect", name, svg, { y: 0, height: 4 });
    node.setAttribute("x", x.toFixed(2));
    node.setAttribute("width", Math.max(0, Math.min(100 - x, share * 100)).toFixed(2));
    x += share * 100;
  });
}
