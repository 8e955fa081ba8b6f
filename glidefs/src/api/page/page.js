// The status page: asks /v1/top every two seconds, or less often where an answer takes long, and shows differences of two answers as rates.
//
// Everything from the daemon is text: names of exports are put on the page by textContent only. The token of the API is kept by
// sessionStorage, which belongs to this tab. Each figure has the attribute data-value: the number before it was shortened.
"use strict";
(() => {
  const INTERVAL_MS = 2000;
  // An answer that takes long is asked for less often.
  const REST_FACTOR = 4;
  const PATIENCE_MS = 20000;
  // Two answers further apart than so many pauses between questions are a gap in a line.
  const GAP_PAUSES = 7;
  // A chart begins with the first point, but is never narrower than the first of these, nor wider than the second.
  const SPAN_SECONDS = [60, 300];
  const HISTORY_MAX = 150;
  const LATENCY_SECONDS = 60;
  const PAGE_ROWS = 50;
  const TOKEN_KEY = "glidefs-token";
  const KINDS = ["read", "write", "flush", "zero"];
  const TIMED = ["read", "write", "flush"];

  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  // ---- Numbers as text. Unknown numbers are null.

  const three = (n) => (n < 9.95 && !Number.isInteger(n) ? n.toFixed(1) : n.toFixed(0));
  function scaled(n, step, units) {
    let unit = 0;
    while (unit + 1 < units.length && n >= step * 0.9995) {
      n /= step;
      unit += 1;
    }
    return (n < 99.95 && unit > 0 ? n.toFixed(1) : three(n)) + units[unit];
  }
  const shorten = {
    count: (n) => scaled(n, 1000, ["", "k", "M", "G", "T", "P"]),
    bytes: (n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"]),
    whole: (n) => n.toLocaleString("en-US"),
    percent: (n) => three(n) + " %",
    text: (n) => n,
    seconds: (n) => {
      if (n < 120) return three(n) + " s";
      if (n < 7200) return Math.floor(n / 60) + " min";
      return n < 172800 ? Math.floor(n / 3600) + " h" : Math.floor(n / 86400) + " d";
    },
    nanos: (n) => {
      if (n < 1e3) return n.toFixed(0) + " ns";
      if (n < 1e6) return three(n / 1e3) + " µs";
      return n < 1e9 ? three(n / 1e6) + " ms" : three(n / 1e9) + " s";
    },
  };

  function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }
  // Puts a figure on the page, with the number itself beside the text.
  function put(node, kind, value) {
    const known = value !== null && value !== undefined;
    write(node, known ? shorten[kind](value) : "–");
    node.dataset.value = known ? String(value) : "";
    node.classList.toggle("zero", value === 0);
  }
  const figure = (name, kind, value) => put(document.querySelector(`[data-figure="${name}"]`), kind, value);

  function make(tag, name, parent) {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (parent) parent.append(node);
    return node;
  }
  function makeSvg(tag, name, parent, attributes = {}) {
    const node = document.createElementNS(SVG, tag);
    if (name) node.setAttribute("class", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  }

  // ---- Rates: differences of two answers.

  // Seconds between two answers of one daemon; null if they cannot be compared.
  function between(before, now) {
    if (!before || before.pid !== now.pid || now.uptime_nanoseconds <= before.uptime_nanoseconds) return null;
    return (now.uptime_nanoseconds - before.uptime_nanoseconds) / 1e9;
  }
  const grown = (before, now) => (now || 0) - (before || 0);
  function growth(before, now, buckets) {
    const latency = Array.from({ length: buckets }, (_, i) => grown((before.latency || [])[i], (now.latency || [])[i]));
    return {
      operations: grown(before.operations, now.operations),
      bytes: grown(before.bytes, now.bytes),
      errors: grown(before.errors, now.errors),
      latency_nanoseconds: grown(before.latency_nanoseconds, now.latency_nanoseconds),
      latency,
    };
  }
  const WAITS = ["limit_wait_nanoseconds", "index_wait_nanoseconds", "log_wait_nanoseconds"];
  const waited = (io) => WAITS.reduce((sum, wait) => sum + (io[wait] || 0), 0);

  // What an export did between two answers; null if its counters began anew, or were not in both.
  function difference(before, now, buckets) {
    if (!before || !before.io || !now.io || before.io.id !== now.io.id) return null;
    const all = { wait: waited(now.io) - waited(before.io) };
    for (const kind of KINDS) {
      const one = growth(before.io[kind], now.io[kind], buckets);
      if (one.operations < 0 || one.bytes < 0 || one.errors < 0 || one.latency_nanoseconds < 0) return null;
      all[kind] = one;
    }
    return all.wait < 0 ? null : all;
  }
  // The latency below which a share of the requests stayed, by linear interpolation inside a bucket, as Prometheus does.
  function quantile(share, buckets, bounds) {
    const total = buckets.reduce((sum, count) => sum + count, 0);
    if (total === 0) return null;
    let rank = share * total;
    for (let i = 0; i < bounds.length; i += 1) {
      const count = buckets[i] || 0;
      const low = i === 0 ? 0 : bounds[i - 1];
      if (rank <= count && count > 0) return low + ((bounds[i] - low) * rank) / count;
      rank -= count;
    }
    return bounds[bounds.length - 1];
  }
  const add = (one, other) => one.map((n, i) => n + (other[i] || 0));

  // ---- State.

  let token = sessionStorage.getItem(TOKEN_KEY);
  let paused = false;
  let timer = null;
  let asking = null;
  // Milliseconds from one question to the next.
  let pace = INTERVAL_MS;
  let before = null;
  let now = null;
  let rows = [];
  let selected = null;
  let firstRow = 0;
  let sort = { key: "ops", down: true };
  let lastAnswer = null;
  // The whole host, a point an answer.
  let history = [];
  // Points of each export with requests, by id: time and six figures a point.
  const histories = new Map();
  const POINT = 7;

  class Ring {
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

  // ---- Charts.

  function drawLines(svg, lines, end, width, height) {
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
        if (last !== null && time - last > (GAP_PAUSES * pace) / 1000) drawing = false;
        path += `${drawing ? "L" : "M"}${x.toFixed(1)} ${(height - 1 - ((height - 2) * value) / (highest || 1)).toFixed(1)}`;
        drawing = true;
        last = time;
      }
      const node = svg.children[i] || makeSvg("path", name, svg);
      node.setAttribute("d", path || "M0 0");
    });
    return highest;
  }
  function label(svg, text) {
    if (svg.getAttribute("aria-label") !== text) svg.setAttribute("aria-label", text);
  }

  const bucketName = (bounds, i) => (i < bounds.length ? "≤ " + shorten.nanos(bounds[i]) : "> " + shorten.nanos(bounds[bounds.length - 1]));
  // A histogram with its quantiles, as a figure; kept and filled again.
  function histogram(parent, name) {
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
  function fill(chart, name, buckets, nanos, bounds) {
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

  // ---- The table of exports.

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

  // The row of an export: what it is, and what it did a second.
  function row(export_, did, seconds, bounds) {
    const io = export_.io;
    const shown = {
      export_, name: export_.name, state: export_.state, size: export_.size_bytes, dirty: export_.dirty_bytes || 0,
      risk: export_.at_risk_seconds || 0, flying: io ? io.in_flight || 0 : 0, waitingFor: export_.waiting_for || "",
      ops: io ? null : 0, read: io ? null : 0, write: io ? null : 0, bytes: io ? null : 0, mean: null, p99: null, waits: io ? null : 0, did,
    };
    if (!did) return shown;
    const sum = (kinds, field) => kinds.reduce((total, kind) => total + did[kind][field], 0);
    const timed = sum(TIMED, "operations");
    shown.ops = sum(KINDS, "operations") / seconds;
    shown.read = did.read.bytes / seconds;
    shown.write = did.write.bytes / seconds;
    shown.bytes = shown.read + shown.write;
    shown.mean = timed === 0 ? null : sum(TIMED, "latency_nanoseconds") / timed;
    shown.p99 = quantile(0.99, TIMED.map((kind) => did[kind].latency).reduce(add), bounds);
    shown.waits = did.wait / seconds;
    return shown;
  }
  const isBusy = (shown) => shown.ops > 0 || shown.flying > 0 || shown.dirty > 0 || shown.waitingFor !== "";

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

  function heads() {
    for (const column of COLUMNS) {
      const head = make("th", column.wide ? "wide" : "", byId("heads"));
      head.scope = "col";
      const button = make("button", "", head);
      button.type = "button";
      write(button, column.head);
      button.addEventListener("click", () => {
        sort = { key: column.key, down: sort.key === column.key ? !sort.down : !column.up };
        firstRow = 0;
        if (now) table();
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
      button.addEventListener("click", () => show(line.dataset.export));
    }
    const cell = make("td", "wide", line);
    makeSvg("svg", "spark", cell, { viewBox: "0 0 90 18", preserveAspectRatio: "none", role: "img" });
  }

  function table() {
    const wanted = byId("find").value.trim().toLowerCase();
    const busyOnly = byId("busy").checked;
    const found = rows.filter((shown) => (wanted === "" || shown.name.toLowerCase().includes(wanted) || shown.state === wanted) && (!busyOnly || isBusy(shown)));
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
      const ring = shown.export_.io && histories.get(shown.export_.io.id);
      drawLines(spark, [["one", ring ? ring.line(1) : []]], now.uptime_nanoseconds / 1e9, 90, 18);
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
    write(byId("none"), rows.length === 0 ? "No exports yet: glidefs export create NAME --size 10GiB makes one." : "No export is like this.");
  }

  // ---- One export.

  const DETAIL = [
    ["Requests/s", "count", [["read", 2], ["write", 3]]],
    ["Bytes/s", "bytes", [["read", 4], ["write", 5]]],
    ["Latency, p99", "nanos", [["one", 6]]],
  ];
  let detailCharts = null;
  function detailParts() {
    if (detailCharts) return detailCharts;
    const lines = DETAIL.map(([title, kind, fields]) => {
      const box = make("figure", "", byId("detail-charts"));
      const caption = make("figcaption", "", box);
      write(caption, title);
      for (const [name] of fields) if (name !== "one") write(make("b", name, caption), name);
      const max = make("span", "max", caption);
      return { kind, fields, max, title, svg: makeSvg("svg", "chart", box, { viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img" }) };
    });
    const latency = TIMED.map((kind) => ({ kind, chart: histogram(byId("detail-latency"), `${kind}, since start`) }));
    detailCharts = { lines, latency };
    return detailCharts;
  }
  function show(name) {
    selected = name;
    detail();
    byId("detail").focus();
    byId("detail").scrollIntoView({ block: "nearest" });
  }
  function detail() {
    const export_ = selected === null ? null : now.exports.find((one) => one.name === selected);
    byId("detail").hidden = selected === null;
    if (selected === null) return;
    write(byId("h-detail"), export_ ? `${selected}: ${export_.state}, ${shorten.bytes(export_.size_bytes)}` : `${selected} is gone`);
    byId("detail").dataset.export = selected;
    const { lines, latency } = detailParts();
    const io = (export_ && export_.io) || {};
    const ring = histories.get(io.id);
    for (const line of lines) {
      const points = line.fields.map(([name, field]) => [name, ring ? ring.line(field) : []]);
      const highest = drawLines(line.svg, points, now.uptime_nanoseconds / 1e9, 300, 60);
      write(line.max, "max " + shorten[line.kind](highest));
      label(line.svg, `${line.title} of ${selected} over five minutes, at most ${shorten[line.kind](highest)}`);
    }
    for (const { kind, chart } of latency) {
      const of = io[kind] || {};
      fill(chart, kind, add(new Array(now.latency_bounds_nanoseconds.length + 1).fill(0), of.latency || []), of.latency_nanoseconds || 0, now.latency_bounds_nanoseconds);
    }
    const body = byId("detail-rows");
    KINDS.forEach((kind, i) => {
      const line = body.children[i] || make("tr", "", body);
      const of = io[kind] || {};
      if (line.children.length === 0) for (let j = 0; j < 5; j += 1) make(j === 0 ? "th" : "td", "", line);
      write(line.children[0], { read: "READ", write: "WRITE", flush: "FLUSH", zero: "DISCARD, WRITE_ZEROES (errors: with WRITE)" }[kind]);
      put(line.children[1], "whole", of.operations || 0);
      put(line.children[2], "bytes", of.bytes || 0);
      put(line.children[3], "whole", kind === "zero" ? null : of.errors || 0);
      put(line.children[4], "nanos", of.operations && kind !== "zero" ? (of.latency_nanoseconds || 0) / of.operations : null);
    });
    const waits = [["limits", "limit_wait_nanoseconds"], ["memory of the index", "index_wait_nanoseconds"], ["log space", "log_wait_nanoseconds"]];
    write(byId("detail-waits"), export_ && export_.io ? "Waited since the start: " + waits.map(([name, field]) => `for ${name} ${shorten.nanos(io[field] || 0)}`).join(", ") : "No requests since the device was made.");
  }

  // ---- All of the page.

  function bar(svg, parts) {
    let x = 0;
    parts.forEach(([name, share], i) => {
      const node = svg.children[i] || makeSvg("rect", name, svg, { y: 0, height: 4 });
      node.setAttribute("x", x.toFixed(2));
      node.setAttribute("width", Math.max(0, Math.min(100 - x, share * 100)).toFixed(2));
      x += share * 100;
    });
  }

  function alerts() {
    figure("alerts", "whole", now.alerts.length);
    figure("not-judged", "whole", now.alerts_not_judged.length);
    write(byId("not-judged-list"), now.alerts_not_judged.join(", "));
    byId("quiet").hidden = now.alerts.length > 0;
    const list = byId("alert-list");
    while (list.children.length > now.alerts.length) list.lastChild.remove();
    now.alerts.forEach((alert, i) => {
      const item = list.children[i] || make("li", "", list);
      if (item.children.length === 0) for (const tag of ["em", "b", "span"]) make(tag, "", item);
      const critical = alert.severity === "critical";
      item.classList.toggle("critical", critical);
      item.classList.toggle("warning", !critical);
      item.dataset.alert = alert.name;
      const names = alert.exports || [];
      const more = (alert.exports_count || 0) - names.length;
      write(item.children[0], alert.severity);
      write(item.children[1], alert.name);
      write(item.children[2], alert.message + (names.length ? ` (${names.join(", ")}${more > 0 ? ` and ${more} more` : ""})` : ""));
    });
  }

  function storeRows(seconds) {
    byId("no-store").hidden = !!now.store;
    byId("store").hidden = !now.store;
    if (!now.store) return;
    const body = byId("store-rows");
    now.store.operations.forEach((operation, i) => {
      const line = body.children[i] || make("tr", "", body);
      if (line.children.length === 0) for (let j = 0; j < 6; j += 1) make(j === 0 ? "th" : "td", "", line);
      line.dataset.operation = operation.operation;
      const then = seconds && before.store && before.store.operations[i];
      write(line.children[0], operation.operation.toUpperCase());
      put(line.children[1], "count", then ? (operation.requests - then.requests) / seconds : null);
      put(line.children[2], "bytes", then ? (operation.bytes - then.bytes) / seconds : null);
      put(line.children[3], "whole", operation.requests);
      put(line.children[4], "bytes", operation.bytes);
      put(line.children[5], "whole", operation.errors);
    });
    figure("store.waiting", "whole", now.store.waiting_reads);
    figure("store.oldest", "seconds", now.store.oldest_read_seconds);
    figure("store.hits", "whole", now.store.block_cache_hits);
    figure("store.misses", "whole", now.store.block_cache_misses);
  }

  function workerRows() {
    const body = byId("worker-rows");
    while (body.children.length > now.workers.length) body.lastChild.remove();
    now.workers.forEach((worker, i) => {
      let line = body.children[i];
      if (!line) {
        line = make("tr", "", body);
        make("th", "", line);
        const busy = make("td", "", line);
        makeSvg("svg", "bar", busy, { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" });
        make("span", "", busy);
        make("td", "", line);
        make("td", "", line);
      }
      write(line.children[0], String(worker.cpu));
      bar(line.children[1].firstChild, [["busy", worker.busy_percent / 100]]);
      put(line.children[1].lastChild, "percent", worker.busy_percent);
      put(line.children[2], "whole", worker.queues);
      put(line.children[3], "whole", worker.requests);
    });
  }

  let latencyCharts = null;
  function latency() {
    const bounds = now.latency_bounds_nanoseconds;
    if (!latencyCharts) latencyCharts = TIMED.map((kind) => ({ kind, chart: histogram(byId("latency"), kind[0].toUpperCase() + kind.slice(1)) }));
    const end = now.uptime_nanoseconds / 1e9;
    // A point has all since the answer before, which may be long ago.
    const recent = history.filter((point) => point.latency && end - point.time + point.seconds <= LATENCY_SECONDS);
    for (const { kind, chart } of latencyCharts) {
      const buckets = recent.map((point) => point.latency[kind]).reduce(add, new Array(bounds.length + 1).fill(0));
      fill(chart, kind, buckets, recent.reduce((sum, point) => sum + point.nanos[kind], 0), bounds);
      chart.box.dataset.latency = kind;
    }
  }

  function totals(seconds) {
    const busy = rows.filter((shown) => shown.did);
    const sum = (kind, field) => busy.reduce((total, shown) => total + shown.did[kind][field], 0);
    const point = { time: now.uptime_nanoseconds / 1e9, seconds };
    for (const kind of KINDS) {
      point[kind] = seconds ? sum(kind, "operations") / seconds : null;
      figure(`${kind}.ops`, "count", point[kind]);
    }
    for (const kind of ["read", "write"]) {
      point[`${kind}Bytes`] = seconds ? sum(kind, "bytes") / seconds : null;
      figure(`${kind}.bytes`, "bytes", point[`${kind}Bytes`]);
    }
    figure("errors", "count", seconds ? KINDS.reduce((total, kind) => total + sum(kind, "errors"), 0) / seconds : null);
    figure("in-flight", "whole", rows.reduce((total, shown) => total + shown.flying, 0));
    if (seconds) {
      const zero = () => new Array(now.latency_bounds_nanoseconds.length + 1).fill(0);
      point.latency = {};
      point.nanos = {};
      for (const kind of TIMED) {
        point.latency[kind] = busy.map((shown) => shown.did[kind].latency).reduce(add, zero());
        point.nanos[kind] = sum(kind, "latency_nanoseconds");
      }
    }
    history.push(point);
    if (history.length > HISTORY_MAX) history.shift();
  }

  function charts() {
    const end = now.uptime_nanoseconds / 1e9;
    const line = (field) => history.map((point) => [point.time, point[field]]);
    for (const [name, kind, lines] of [
      ["ops", "count", [["read", line("read")], ["write", line("write")]]],
      ["bytes", "bytes", [["read", line("readBytes")], ["write", line("writeBytes")]]],
    ]) {
      const highest = drawLines(byId(`${name}-chart`), lines, end, 300, 60);
      write(byId(`${name}-max`), "max " + shorten[kind](highest));
      label(byId(`${name}-chart`), `${name} a second over five minutes, at most ${shorten[kind](highest)}`);
    }
  }

  function take(answer) {
    // A daemon that was restarted counts from 0, by another clock.
    if (now && between(now, answer) === null) {
      history = [];
      histories.clear();
    }
    [before, now] = [now, answer];
    const seconds = between(before, now);
    const bounds = now.latency_bounds_nanoseconds;
    const known = new Map(seconds ? before.exports.map((one) => [one.name, one]) : []);
    rows = now.exports.map((one) => row(one, seconds ? difference(known.get(one.name), one, bounds.length + 1) : null, seconds, bounds));
    const ids = new Set();
    for (const shown of rows) {
      if (!shown.export_.io) continue;
      const id = shown.export_.io.id;
      ids.add(id);
      if (!shown.did) continue;
      if (!histories.has(id)) histories.set(id, new Ring());
      const a_second = (n) => n / seconds;
      histories.get(id).push([
        now.uptime_nanoseconds / 1e9, shown.ops, a_second(shown.did.read.operations), a_second(shown.did.write.operations),
        shown.read, shown.write, shown.p99 === null ? NaN : shown.p99,
      ]);
    }
    for (const id of histories.keys()) if (!ids.has(id)) histories.delete(id);
    draw(seconds);
  }

  function draw(seconds) {
    figure("version", "text", now.version);
    figure("uptime", "seconds", now.uptime_nanoseconds / 1e9);
    write(byId("state"), now.ready ? "ready" : "starting");
    byId("state").classList.toggle("bad", !now.ready);
    alerts();
    totals(seconds);
    figure("risk.bytes", "bytes", now.at_risk.bytes);
    figure("risk.seconds", "seconds", now.at_risk.seconds);
    figure("risk.exports", "whole", now.at_risk.exports);
    for (const name of ["used", "size", "dirty", "clean"]) figure(`cache.${name}`, "bytes", now.cache[`${name}_bytes`]);
    const size = now.cache.size_bytes || 1;
    const other = Math.max(0, now.cache.used_bytes - now.cache.dirty_bytes - now.cache.clean_bytes);
    bar(byId("cache-bar"), [["dirty", now.cache.dirty_bytes / size], ["clean", now.cache.clean_bytes / size], ["other", other / size]]);
    label(byId("cache-bar"), `${((100 * now.cache.used_bytes) / size).toFixed(0)} % of the cache is used`);
    for (const name of ["total", "serving", "detached", "failed"]) figure(`counts.${name}`, "whole", now.counts[name]);
    charts();
    latency();
    storeRows(seconds);
    workerRows();
    table();
    detail();
    reveal(true);
    document.title = now.alerts.length ? `(${now.alerts.length}) glidefs ${location.host}` : `glidefs ${location.host}`;
  }

  // ---- Asking.

  function say(text, bad) {
    write(byId("live"), text);
    byId("live").classList.toggle("bad", bad);
  }
  // Shows either the figures or the question for the token.
  function reveal(figures) {
    for (const id of ["main", "facts", "pause", "foot"]) byId(id).hidden = !figures;
    byId("ask").hidden = figures;
    byId("forget").hidden = !figures || token === null;
  }
  function askForToken(why) {
    reveal(false);
    write(byId("why"), why);
    byId("token").focus();
    say("", false);
  }
  function forget() {
    token = null;
    sessionStorage.removeItem(TOKEN_KEY);
    [before, now, rows, history, selected] = [null, null, [], [], null];
    histories.clear();
    clearTimeout(timer);
    if (asking) asking.abort();
    [asking, lastAnswer, paused] = [null, null, false];
    byId("pause").setAttribute("aria-pressed", "false");
  }

  async function ask() {
    clearTimeout(timer);
    if (asking || paused || document.hidden) return;
    const began = performance.now();
    const question = new AbortController();
    asking = question;
    const asked = token;
    const late = setTimeout(() => question.abort(), PATIENCE_MS);
    try {
      const headers = asked === null ? {} : { Authorization: `Bearer ${asked}` };
      const answer = await fetch("v1/top", { headers, cache: "no-store", credentials: "omit", signal: question.signal });
      if (token !== asked) return;
      if (answer.status === 401) {
        const had = asked !== null;
        forget();
        askForToken(had ? "The daemon does not take this token." : "");
        return;
      }
      const body = await answer.json();
      if (token !== asked) return;
      if (!answer.ok) throw new Error(body.error ? body.error.message : `status ${answer.status}`);
      lastAnswer = new Date();
      if (paused) return;
      pace = Math.max(INTERVAL_MS, (REST_FACTOR + 1) * (performance.now() - began));
      // The daemon may send an answer twice when others are slow to take theirs.
      if (!now || now.pid !== body.pid || now.uptime_nanoseconds !== body.uptime_nanoseconds) take(body);
      say(`live, every ${shorten.seconds(pace / 1000)}`, false);
    } catch (error) {
      if (token !== asked) return;
      const since = lastAnswer ? `; the figures are of ${lastAnswer.toLocaleTimeString()}` : "";
      say(`No answer from the daemon (${error.message})${since}`, true);
    } finally {
      clearTimeout(late);
      if (asking === question) asking = null;
    }
    timer = setTimeout(ask, Math.max(INTERVAL_MS, REST_FACTOR * (performance.now() - began)));
  }

  function pause() {
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    clearTimeout(timer);
    say(paused ? "paused" : "", false);
    ask();
  }

  document.addEventListener("visibilitychange", () => !document.hidden && ask());
  byId("pause").addEventListener("click", pause);
  byId("forget").addEventListener("click", () => {
    forget();
    askForToken("");
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    token = byId("token").value.trim();
    byId("token").value = "";
    // A header may have no other characters; a token has none either.
    if (!/^[\x21-\x7e]+$/.test(token)) {
      forget();
      write(byId("why"), "This is not a token.");
      return;
    }
    sessionStorage.setItem(TOKEN_KEY, token);
    ask();
  });
  for (const [id, event] of [["find", "input"], ["busy", "change"]]) {
    byId(id).addEventListener(event, () => {
      firstRow = 0;
      if (now) table();
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
  byId("close").addEventListener("click", () => {
    selected = null;
    detail();
  });
  write(byId("host"), location.host);
  heads();
  // For tests: the two answers behind what is shown.
  window.glidefs = Object.freeze({ shown: () => ({ before, now, history, firstRow, selected, paused }) });
  ask();
})();
