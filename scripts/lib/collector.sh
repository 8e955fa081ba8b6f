# An OpenTelemetry collector for scripts/trace-test: built with no more than a receiver of OTLP and an exporter that prints, and started.
# Sourced, never run. Needs common.sh and go.sh; start_collector also daemon.sh.
# shellcheck shell=bash

# A version with which the test passes.
COLLECTOR_VERSION=v0.165.0
COLLECTOR=$GO_TOOLS/otelcol

# need_collector: builds the collector, unless this version is there.
need_collector() {
	local at
	! have_go_tool otelcol $COLLECTOR_VERSION || return 0
	need_go_tool builder go.opentelemetry.io/collector/cmd/builder $COLLECTOR_VERSION
	say "building otelcol $COLLECTOR_VERSION"
	at=$(mktemp -d)
	cat >"$at/builder.yaml" <<-END
		dist:
		  name: otelcol
		  output_path: $at/out
		receivers:
		  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver $COLLECTOR_VERSION
		exporters:
		  - gomod: go.opentelemetry.io/collector/exporter/debugexporter $COLLECTOR_VERSION
	END
	GOTOOLCHAIN=auto GOFLAGS=-modcacherw "$GO_TOOLS/builder" --config "$at/builder.yaml" >"$at/log" 2>&1 || die "the collector was not built: $(cat "$at/log")"
	mv "$at/out/otelcol" "$COLLECTOR"
	rm -rf "$at"
	printf '%s\n' $COLLECTOR_VERSION >"$COLLECTOR.version"
}

# start_collector: writes every span that comes into $WORK/spans.
start_collector() {
	cat >"$WORK/collector.yaml" <<-END
		receivers:
		  otlp:
		    protocols:
		      http:
		        endpoint: 127.0.0.1:4318
		exporters:
		  debug:
		    verbosity: detailed
		    use_internal_logger: false
		service:
		  telemetry:
		    metrics:
		      level: none
		  pipelines:
		    traces:
		      receivers: [otlp]
		      exporters: [debug]
	END
	"$COLLECTOR" --config "$WORK/collector.yaml" >>"$WORK/spans" 2>"$WORK/collector.log" &
	COLLECTOR_PID=$!
	until curl -s -o "$WORK/answer" http://127.0.0.1:4318/; do
		kill -0 $COLLECTOR_PID 2>/dev/null || die "the collector has ended: $(cat "$WORK/collector.log")"
		sleep 0.1
	done
}

# roots FILE: operation, offset, bytes, tag and length of each request of a device in the output of the collector.
roots() {
	awk '
		function nanos(stamp, of) { split(stamp, of, /[:.]/); return ((of[1] * 60 + of[2]) * 60 + of[3]) * 1e9 + substr(of[4] "000000000", 1, 9) }
		function show() { if (kind == "Server") printf "%s %s %s %s %.0f\n", name, of["offset"], of["bytes"], of["tag"], (to - from + 864e11) % 864e11; kind = "" }
		/^Span #/ { show() }
		/^    Name  / { name = $3 }
		/^    Kind  / { kind = $3 }
		/^    Start time/ { from = nanos($5) }
		/^    End time/ { to = nanos($5) }
		/-> glidefs\.(offset|bytes|tag): / { key = $2; gsub(/glidefs\.|:/, "", key); value = $3; gsub(/[^0-9]/, "", value); of[key] = value }
		END { show() }' "$1" | sort
}
