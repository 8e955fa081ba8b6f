// Numbers of the status page: as text, and as differences of two answers. Nothing here touches the page.

export const KINDS = ["read", "write", "flush", "zero"];
export const TIMED = ["read", "write", "flush"];

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
export const shorten = {
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

// ---- Rates: differences of two answers.

// Seconds between two answers of one daemon; null if they cannot be compared.
export function between(before, now) {
  if (!before || before.instance !== now.instance || now.uptime_nanoseconds <= before.uptime_nanoseconds) return null;
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
export function difference(before, now, buckets) {
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
export function quantile(share, buckets, bounds) {
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
export const add = (one, other) => one.map((n, i) => n + (other[i] || 0));

// The row of an export: what it is, and what it did a second.
export function row(export_, did, seconds, bounds) {
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
