// The status page: asks /v1/top every two seconds, or less often where an answer takes long, and shows differences of two answers as rates.
//
// Everything from the daemon is text: names of exports are put on the page by textContent only. The token of the API is kept by
// sessionStorage, which belongs to this tab. Each figure has the attribute data-value: the number before it was shortened.
import { HISTORY_MAX, Ring, bar, drawLines, figure, fill, histogram, label, make, makeSvg, put, write } from "./charts.js";
import { KINDS, TIMED, add, between, difference, row, shorten } from "./numbers.js";
import * as table from "./table.js";

const INTERVAL_MS = 2000;
// An answer that takes long is asked for less often.
const REST_FACTOR = 4;
const PATIENCE_MS = 20000;
// Two answers further apart than so many pauses between questions are a gap in a line.
const GAP_PAUSES = 7;
const LATENCY_SECONDS = 60;
const TOKEN_KEY = "glidefs-token";

const byId = (id) => document.getElementById(id);

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
let lastAnswer = null;
// The whole host, a point an answer.
let history = [];
// Points of each export with requests, by id: time and six figures a point.
const histories = new Map();
// Points further apart are not joined, seconds.
const gap = () => (GAP_PAUSES * pace) / 1000;

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
    const highest = drawLines(line.svg, points, now.uptime_nanoseconds / 1e9, 300, 60, gap());
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

function warnings() {
  figure("warnings", "whole", now.warnings.length);
  byId("warnings").hidden = now.warnings.length === 0;
  byId("warning-list").replaceChildren(...now.warnings.map((text) => {
    const item = make("li", "");
    write(item, text);
    return item;
  }));
}

function storeRows(seconds) {
  byId("no-store").hidden = !!now.store;
  byId("store").hidden = !now.store;
  if (!now.store) return;
  figure("store.url", "text", now.store.status.url);
  figure("store.state", "text", now.store.status.state);
  figure("store.since", "seconds", now.store.status.since_seconds);
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
    const highest = drawLines(byId(`${name}-chart`), lines, end, 300, 60, gap());
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
  warnings();
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
  table.draw(rows, histories, now.uptime_nanoseconds / 1e9, gap());
  detail();
  reveal(true);
  document.title = now.warnings.length ? `(${now.warnings.length}) glidefs ${location.host}` : `glidefs ${location.host}`;
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
  table.forget();
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
      askForToken(had ? "The daemon does not take this token: copy the first line of the token file." : "");
      return;
    }
    const body = await answer.json();
    if (token !== asked) return;
    if (!answer.ok) throw new Error(body.error ? body.error.message : `status ${answer.status}`);
    lastAnswer = new Date();
    if (paused) return;
    pace = Math.max(INTERVAL_MS, (REST_FACTOR + 1) * (performance.now() - began));
    // The daemon may send an answer twice when others are slow to take theirs.
    if (!now || now.instance !== body.instance || now.uptime_nanoseconds !== body.uptime_nanoseconds) take(body);
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
    write(byId("why"), "A token has no spaces: copy the first line of the token file.");
    return;
  }
  sessionStorage.setItem(TOKEN_KEY, token);
  ask();
});
byId("close").addEventListener("click", () => {
  selected = null;
  detail();
});
write(byId("host"), location.host);
table.begin(show);
// For tests: the two answers behind what is shown, and the points of an export's lines, by the id of its counters.
const points = (id) => (histories.has(id) ? [1, 2, 3, 4, 5, 6].map((field) => histories.get(id).line(field)) : []);
window.glidefs = Object.freeze({ shown: () => ({ before, now, history, selected, paused }), points });
ask();
