#!/usr/bin/env bash
# The server alone, on the null device: the rows of BENCHMARKS.md.
#   tests/bench/measure_server.sh MODEL [full half lockstep bare hold idle]...
# The whole server process runs on processor 0, the load generator on processor 1. PREFIX is put before both: with
# PREFIX="chrt -f 1" (root) other work on the machine does not count. BUILD is the build folder (build). CONGESTION=cubic
# (root) has TCP use it for the time of the run; else it is what the system is set to.
#
# Client and server share a machine, and so the server's processor also does what is the client's: it takes the bytes in,
# and wakes the client up. Where latency is measured the client naps for 20 us before each look (load --nap), so that
# there is nobody to wake; what it finds late for that counts as added latency.
set -eu
model=$1
shift
build=${BUILD:-build} prefix=${PREFIX:-} port=${PORT:-9123}
common="--max-batched-tokens 65536 --max-waiting 20000 --max-waiting-tokens 0 --max-connections 12000"

serve() { # OPTION...
    # shellcheck disable=SC2086 # several words
    taskset -c 0 $prefix "$build/inferd" serve "$model" --device null --port "$port" --log-level error $common "$@" &
    server=$!
    until curl -sf -o /dev/null "http://127.0.0.1:$port/readyz"; do sleep 0.1; done
}

load() { # OPTION...
    # shellcheck disable=SC2086
    taskset -c 1 $prefix "$build/tests/bench/load" --port "$port" --pid "$server" "$@"
}

end() {
    kill "$server"
    wait "$server" || true
}
congestion=/proc/sys/net/ipv4/tcp_congestion_control
was=$(cat $congestion)
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "${CONGESTION:-}" ] || echo "$was" >$congestion
}
server=
trap finish EXIT
[ -z "${CONGESTION:-}" ] || echo "$CONGESTION" >$congestion
echo "TCP congestion control: $(cat $congestion)"

cpu_ms() { cat /proc/"$server"/task/*/schedstat | awk '{ns += $1} END {print ns / 1e6}'; }

[ $# -gt 0 ] || set -- full half lockstep hold idle
for what in "$@"; do
    echo "== $what"
    case $what in
    full) # as fast as the process can, 1,000 streams
        serve --max-sequences 1000 --kv-tokens 4000000
        load --connections 1000 --max-tokens 1000 --warmup 2 --duration 5 --exact
        ;;
    half) # half as many streams, each as fast as at 150,000 tokens/s over 1,000
        serve --max-sequences 1000 --kv-tokens 4000000 --null-step-time 0.006666667
        load --connections 500 --max-tokens 2000 --warmup 2 --duration 5 --exact --step-time 0.006666667 --nap 0.00002
        ;;
    lockstep) # the same rate over 1,000 streams that all get their token in the same moment
        serve --max-sequences 1000 --kv-tokens 4000000 --null-step-time 0.013333333
        load --connections 1000 --max-tokens 2000 --warmup 2 --duration 5 --exact --step-time 0.013333333 --nap 0.00002
        ;;
    bare) # what is below both: send() and recv() alone
        # shellcheck disable=SC2086
        $prefix "$build/tests/bench/bare_send" 500 0.006666667
        # shellcheck disable=SC2086
        $prefix "$build/tests/bench/bare_send" 1000 0.013333333
        continue
        ;;
    hold) # 10,000 streams, a token every 2 s
        serve --max-sequences 10000 --kv-tokens 16000000 --null-step-time 2
        load --connections 10000 --max-tokens 500 --warmup 20 --duration 10
        ;;
    idle) # nothing to do; then 10,000 streams that wait for their first token
        serve --max-sequences 10000 --kv-tokens 16000000 --null-step-time 60 --sse-ping-interval 0
        before=$(cpu_ms) && sleep 10 && after=$(cpu_ms)
        echo "no client: $(awk "BEGIN {print ($after - $before) / 10}") ms of processor time a second"
        load --connections 10000 --max-tokens 500 --warmup 1 --duration 24 >/dev/null &
        sleep 13
        before=$(cpu_ms) && sleep 10 && after=$(cpu_ms)
        echo "10,000 silent streams: $(awk "BEGIN {print ($after - $before) / 10}") ms of processor time a second"
        wait $!
        ;;
    esac
    end
done
