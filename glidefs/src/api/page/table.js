// The table of exports: sorted, searched, a page of rows at a time.
import { drawLines, label, make, makeSvg, put, write } from "./charts.js";

const PAGE_ROWS = 50;
const byId = (id) => document.getElementById(id);

let sort = { key: "ops", down: true };
let firstRow = 0;
// The arguments of the last draw().
let shownNow = null;
let showExport = null;

const COLUMNS = [
  { key: "name", head: "Name", kind: "text", up: true },
  { key: "state", head: "State", kind: "text", up: true },
  { key: "size", head: "Size", kind: "bytes", wide: true },
  { key: "ops", head: "IOPS", kind: "count" },
  { key: "read", head: "Read/s", kind: "bytes", wide: true },
  { key: "write", head: "Written/s", kind: "bytes", wide: true },
  { key: "bytes", head: "Bytes/s", kind: "bytes" },
  { key: "mean", head: "Mean", kind: "nanos", wide: true },
  { key: "p99", head: "p99", kind: "nanos" },
  { key: "flying", head: "In flight", kind: "whole", wide: true },
  { key: "dirty", head: "Dirty", kind: "bytes" },
  { key: "risk", head: "At risk", kind: "seconds", wide: true },
  { key: "waits", head: "Waits/s", kind: "nanos", wide: true },
];

const isActive = (shown) => shown.ops > 0 || shown.flying > 0 || shown.dirty > 0 || shown.waitingFor !== "";

function compare(one, other) {
  const [a, b] = [one[sort.key], other[sort.key]];
  let order;
  if (typeof a === "string") order = a < b ? -1 : a > b ? 1 : 0;
  // What is not known comes last in either order.
  else if (a === null || b === null) return (a === null) - (b === null) || (one.name < other.name ? -1 : 1);
  else order = a - b;
  if (sort.down) order = -order;
  return order || (one.name < other.name ? -1 : 1);
}

// Makes the heads, and has `show` called with the name of an export that is chosen. Call once.
export function begin(show) {
  showExport = show;
  for (const column of COLUMNS) {
    const head = make("th", column.wide ? "wide" : "", byId("heads"));
    head.scope = "col";
    const button = make("button", "", head);
    button.type = "button";
    write(button, column.head);
    button.addEventListener("click", () => {
      sort = { key: column.key, down: sort.key === column.key ? !sort.down : !column.up };
      firstRow = 0;
      table();
    });
  }
  const head = make("th", "wide", byId("heads"));
  head.scope = "col";
  write(head, "History");
}

function cells(line) {
  for (const column of COLUMNS) {
    const cell = make(column.key === "name" ? "th" : "td", column.wide ? "wide" : "", line);
    if (column.key !== "name") continue;
    cell.scope = "row";
    const button = make("button", "", cell);
    button.type = "button";
    button.addEventListener("click", () => showExport(line.dataset.export));
  }
  const cell = make("td", "wide", line);
  makeSvg("svg", "spark", cell, { viewBox: "0 0 90 18", preserveAspectRatio: "none", role: "img" });
}

function table() {
  if (shownNow === null) return;
  const { rows, lines, end, gap } = shownNow;
  const wanted = byId("find").value.trim().toLowerCase();
  const activeOnly = byId("active").checked;
  const found = rows.filter((shown) => (wanted === "" || shown.name.toLowerCase().includes(wanted) || shown.state === wanted) && (!activeOnly || isActive(shown)));
  found.sort(compare);
  firstRow = Math.max(0, Math.min(firstRow, Math.floor((found.length - 1) / PAGE_ROWS) * PAGE_ROWS));
  const part = found.slice(firstRow, firstRow + PAGE_ROWS);
  const body = byId("rows");
  while (body.children.length > part.length) body.lastChild.remove();
  while (body.children.length < part.length) cells(make("tr", "", body));
  part.forEach((shown, i) => {
    const line = body.children[i];
    line.dataset.export = shown.name;
    COLUMNS.forEach((column, j) => {
      const cell = line.children[j];
      put(column.key === "name" ? cell.firstChild : cell, column.kind, shown[column.key]);
      if (column.key === "name") cell.firstChild.title = shown.name;
      if (column.key === "state") {
        cell.classList.toggle("failed", shown.state === "failed");
        if (shown.waitingFor) write(cell, `${shown.state}, waits for ${shown.waitingFor}`);
      }
    });
    const spark = line.lastChild.firstChild;
    const ring = shown.export_.io && lines.get(shown.export_.io.id);
    drawLines(spark, [["one", ring ? ring.line(1) : []]], end, 90, 18, gap);
    label(spark, ring ? "Requests a second over the last five minutes" : "No requests");
  });
  COLUMNS.forEach((column, j) => {
    const head = byId("heads").children[j];
    if (column.key === sort.key) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  write(byId("range"), found.length === 0 ? "none" : `${firstRow + 1}–${firstRow + part.length} of ${found.length}`);
  byId("previous").disabled = firstRow === 0;
  byId("next").disabled = firstRow + PAGE_ROWS >= found.length;
  byId("none").hidden = found.length > 0;
  write(byId("none"), rows.length === 0 ? "No exports yet: glidefs export create NAME --size 10GiB makes one." : "No export matches: clear Find, or untick the box.");
}

// Draws the table with `rows`, the rows of all exports, and the lines of requests by id of an export's counters, which end at `end`.
export function draw(rows, lines, end, gap) {
  shownNow = { rows, lines, end, gap };
  table();
}
// Forgets all exports.
export function forget() {
  shownNow = null;
}

for (const [id, event] of [["find", "input"], ["active", "change"]]) {
  byId(id).addEventListener(event, () => {
    firstRow = 0;
    table();
  });
}
byId("previous").addEventListener("click", () => {
  firstRow -= PAGE_ROWS;
  table();
});
byId("next").addEventListener("click", () => {
  firstRow += PAGE_ROWS;
  table();
});
