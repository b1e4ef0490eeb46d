# shellcheck shell=bash
# What `./bootstrap test` runs, in order; sourced by ../bootstrap, whose functions and variables it uses.
# One line a suite, and at the very end the sum alone on a line. tests/README.md says what each suite is for.

# shellcheck disable=SC2154 # top, cache, ... are bootstrap's

# record SUITE PASSED FAILED SKIPPED SECONDS; $tally keeps them for the sum, whichever shell they come from.
record() {
    printf 'suite %s: %d passed, %d failed, %d skipped (%d s)\n' "$@"
    printf '%d %d %d %s\n' "$2" "$3" "$4" "$1" >>"$tally"
}

# What computes runs beside what mostly waits, at the lowest priority: the daemon's tests leave a core idle, and lose
# next to nothing to such neighbours. `beside COMMAND` starts it (one at a time), its output is shown by `join`.
beside() {
    rm -f "$cache/beside.log"
    set -m # a process group of its own, to be ended whole
    (
        renice -n 19 -p "$BASHPID" >/dev/null
        "$@"
    ) >"$cache/beside.log" 2>&1 </dev/null &
    beside=$!
    set +m
    trap 'kill -- -$beside 2>/dev/null' EXIT
}
join() {
    wait "$beside" || record beside 0 1 0 0 # it ended before its end
    trap - EXIT
    cat "$cache/beside.log"
}
# Until what runs beside has made FILE, or has ended.
await() { # FILE
    while [ ! -e "$1" ] && kill -0 "$beside" 2>/dev/null; do sleep 1; done
    [ -e "$1" ]
}

# Whatever a runner wrote is counted by tests/totals.py: a line "SUITE PASSED FAILED SKIPPED SECONDS" each.
record_report() { # REPORT NOTE [NAME]
    local name numbers
    while read -r name numbers; do
        # shellcheck disable=SC2086 # four numbers
        record "$name$2" $numbers
    done < <("$python" "$top/tests/totals.py" "$1" "${3:-api}")
}

# run_native FOLDER NOTE [ARGUMENT...]: the meson suites of a build folder (meson builds what they need).
run_native() {
    local folder=$top/$1 note=$2
    shift 2
    rm -f "$folder/meson-logs/testlog.json"
    say "running the tests of ${folder#"$top"/}"
    meson test -C "$folder" --print-errorlogs "$@" || true
    if [ -e "$folder/meson-logs/testlog.json" ]; then
        record_report "$folder/meson-logs/testlog.json" "$note"
    else
        record "${folder#"$top"/}" 0 1 0 0
    fi
}

# run_api FOLDER NOTE [ARGUMENT...]: the daemon of a build folder, driven from outside.
run_api() {
    local folder=$top/$1 note=$2 report=$top/$1/api.xml
    shift 2
    rm -f "$report"
    say "driving the daemon of ${folder#"$top"/}"
    INFERD=$folder/inferd "$venv/bin/python" -m pytest -q -p no:cacheprovider --junitxml="$report" "$@" "$top/tests/api" || true
    if [ -e "$report" ]; then
        record_report "$report" "$note"
    else
        record "api$note" 0 1 0 0
    fi
}

# The packages in a booted Debian; one skipped test where that cannot be had.
run_systemd() {
    local report=$top/build/systemd.xml result=0 module=$top/build/engine/backend/cuda/inferd-cuda.so
    rm -f "$report"
    say "booting a Debian with the packages"
    [ -e "$module" ] || module=
    INFERD_CACHE=$cache INFERD_PYTHON=$python INFERD_CUDA_MODULE=$module "$top/tests/systemd/run.sh" --junitxml="$report" || result=$?
    if [ "$result" = 77 ]; then
        record systemd 0 0 1 0
    elif [ -e "$report" ]; then
        record_report "$report" '' systemd
    else
        record systemd 0 1 0 0
    fi
}

# run_soak FOLDER NOTE ARGUMENT...: random traffic, clients that leave, and what is left afterwards. It takes whatever time
# it is given, and so no more than what runs beside it.
run_soak() {
    local folder=$top/$1 note=$2 start=$SECONDS
    shift 2
    say "soaking the daemon of ${folder#"$top"/}: $*"
    if INFERD=$folder/inferd nice -n 19 "$venv/bin/python" "$top/tests/soak/soak.py" "$@" >"$folder/soak.json"; then
        record "soak$note" 1 0 0 $((SECONDS - start))
    else
        cat "$folder/soak.json"
        record "soak$note" 0 1 0 $((SECONDS - start))
    fi
}

# run_aborts FOLDER NOTE N M: N requests on the null device, M on a tiny model; most are left before their end.
run_aborts() {
    local folder=$top/$1
    "$folder/tests/engine/write_tiny_model" "$folder/tiny.gguf"
    INFERD_TEST_SLOW=5 run_soak "$1" "$2" --model "$folder/tiny.gguf" --aborts 0.8 --device null --requests "$3"
    INFERD_TEST_SLOW=5 run_soak "$1" "$2" --model "$folder/tiny.gguf" --aborts 0.8 --requests "$4"
}

# Each fuzzer for a while from its seeds, two at a time at least; what they find is left in build-fuzz/found. Those of
# the tokenizers and templates have more to walk through, so they get more time.
fuzz_seconds() { # NAME
    case $1 in
    fuzz_tokenizer_json | fuzz_gguf_vocab | fuzz_encode | fuzz_jinja* | fuzz_template* | fuzz_chat*) echo 60 ;;
    *) echo 15 ;;
    esac
}

run_fuzzers() {
    local at_once program name ok=0 bad=0 start=$SECONDS names=()
    # shellcheck disable=SC2046 # a word each
    compile build-fuzz $(ninja -C "$top/build-fuzz" -t targets all | grep -oE '^tests/fuzz/fuzz_[a-z0-9_]+:' | tr -d :)
    mkdir -p "$top/build-fuzz/found"
    for program in "$top"/build-fuzz/tests/fuzz/fuzz_*; do
        if [ -f "$program" ] && [ -x "$program" ]; then names+=("$(basename "$program")"); fi
    done
    at_once=$(nproc)
    [ "$at_once" -ge 2 ] || at_once=2
    say "fuzzing for 15 to 60 s each, $at_once at a time: ${names[*]}"
    for name in "${names[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n || true; done
        fuzz_one "$name" "$(fuzz_seconds "$name")" &
    done
    wait
    for name in "${names[@]}"; do
        if [ "$(cat "$top/build-fuzz/$name.result")" = 0 ]; then
            ok=$((ok + 1))
        else
            bad=$((bad + 1))
            tail -n 60 "$top/build-fuzz/$name.log"
        fi
    done
    record fuzzing "$ok" "$bad" 0 $((SECONDS - start))
}

fuzz_one() { # NAME SECONDS
    local name=$1 result=0 folder=$top/build-fuzz
    mkdir -p "$folder/corpus/$name"
    rm -f "$folder/$name.result"
    "$folder/tests/fuzz/$name" -max_total_time="$2" -timeout=20 -rss_limit_mb=3000 -artifact_prefix="$folder/found/$name-" \
        "$folder/corpus/$name" "$top/tests/fuzz/seeds/${name#fuzz_}" >"$folder/$name.log" 2>&1 || result=$?
    echo "$result" >"$folder/$name.result"
}

# The Python environment of the API tests, remade when its list or the interpreter changes.
make_venv() {
    local base stamp want log=$cache/venv.log
    local -a lists=(-r "$top/tests/requirements.txt")
    ! has_nvcc || lists+=(-r "$top/tests/gpu/requirements.txt")
    base=$(find_python venv) || die "the API tests need Python's venv module: install python3-venv"
    venv=$cache/venv
    stamp=$venv/.bootstrap
    want=$("$base" --version && for list in "${lists[@]}"; do [ "$list" = -r ] || cat "$list"; done)
    [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || return 0
    say "making the Python environment of the API tests"
    rm -rf "$venv"
    if ! { "$base" -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "${lists[@]}"; } >"$log" 2>&1; then
        die "the Python environment could not be made (no network?): $(reason_in "$log") (all of it: $log)"
    fi
    printf '%s\n' "$want" >"$stamp"
}

# The CUDA toolkit is used where it is, and never brought: without it the tests that need it skip.
has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

# promtool and prometheus out of Debian's package, unpacked beside the models: installed, it would start a server on this
# machine. Where it cannot be had, the tests that need it skip.
bring_prometheus() {
    local folder=$cache/prometheus log=$cache/prometheus.log
    export INFERD_PROMETHEUS=$folder/usr/bin
    if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
        unset INFERD_PROMETHEUS
        return 0
    fi
    [ ! -x "$folder/usr/bin/promtool" ] || return 0
    [ "$install" = yes ] && command -v apt-get >/dev/null || return 0
    say "bringing promtool and prometheus out of Debian's package (19 MB)"
    rm -rf "$folder"
    mkdir -p "$folder/download"
    if ! (cd "$folder/download" && { apt-get download prometheus || {
        as_root apt-get update && apt-get download prometheus
    }; } && dpkg-deb -x prometheus_*.deb "$folder") </dev/null >"$log" 2>&1; then
        say "the package prometheus cannot be had (see $log): its tests will skip"
    fi
    rm -rf "$folder/download"
}

# Beside the daemon's tests: what needs nobody else's time.
sanitized_and_fuzzed() {
    # reports need lines, not variables, and that halves the compiler's work
    local -a lines_only=("-Dc_args=${CFLAGS:-} -g1" "-Dcpp_args=${CXXFLAGS:-} -g1")
    configure build-asan --buildtype debugoptimized -Db_sanitize=address,undefined -Db_lundef=false -Dfault_hooks=true "${lines_only[@]}"
    compile build-asan
    touch "$top/build-asan/.built"
    run_native build-asan ' (asan, ubsan)' --timeout-multiplier 8 --no-suite borders --no-suite bootstrap --no-suite golden_models --no-suite gpu-static

    # another compiler's warnings and code
    CC=clang CXX=clang++ configure build-clang --buildtype debug -Dcuda=disabled "${lines_only[@]}"
    compile build-clang
    run_native build-clang ' (clang, debug)' --timeout-multiplier 8 --suite unit

    # races: the programs with a plain main (Debian's Criterion does not start under the thread sanitizer)
    configure build-tsan --buildtype debugoptimized -Db_sanitize=thread -Db_lundef=false -Dfault_hooks=true "${lines_only[@]}"
    # of the engine's those in which threads meet: what the others add happens on the engine's alone
    run_native build-tsan ' (tsan)' --timeout-multiplier 8 ops engine fork pressure sampling quantize null collective
    compile build-tsan inferd tests/engine/write_tiny_model
    run_aborts build-tsan ' (tsan)' 2000 100

    CC=clang CXX=clang++ configure build-fuzz --buildtype debugoptimized -Db_sanitize=address,undefined -Db_lundef=false -Dfuzz=true "${lines_only[0]}"
    run_fuzzers
}

# Processor seconds of everything that this shell has waited for: what it costs, however busy the machine is.
processor_seconds() {
    times >"$cache/times" # a pipe would ask another shell
    awk 'NR == 2 { for (i = 1; i <= NF; i++) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } printf "%.0f\n", s }' "$cache/times"
}

command_test() {
    local start=$SECONDS venv python passed failed skipped name
    install_packages "${test_packages[@]}"
    bring_demo_model
    bring_gemma
    bring_prometheus
    make_venv
    python=$venv/bin/python
    if has_nvcc; then
        INFERD_CUOBJDUMP=$(compgen -G "$venv/lib/python3*/site-packages/nvidia/*/bin/cuobjdump" || true)
        export INFERD_CUOBJDUMP
    fi
    export CCACHE_NOHASHDIR=1 # what another clone has compiled is the same
    export INFERD_TEST_MODEL=$cache/models/$demo_file INFERD_TEST_GEMMA=$cache/models/$gemma_file

    tally=$cache/tally beside=
    : >"$tally"

    # as shipped
    build_release
    run_native build ''
    rm -f "$top/build-asan/.built"
    beside sanitized_and_fuzzed
    INFERD_TEST_SLOW=3 run_api build ''
    INFERD_TEST_SLOW=4 run_systemd
    "$top/build/tests/engine/write_tiny_model" "$top/build/tiny.gguf"
    INFERD_TEST_SLOW=5 run_soak build '' --seconds 40
    INFERD_TEST_SLOW=5 run_soak build '' --seconds 80 --model "$top/build/tiny.gguf" --max-growth 4

    # the same behaviour with every access and every overflow checked, and faults caused on purpose
    if await "$top/build-asan/.built"; then
        INFERD_TEST_SLOW=8 INFERD_TEST_SANITIZED=1 INFERD_TEST_FAULTS=13 run_api build-asan ' (asan, ubsan)'
        run_aborts build-asan ' (asan, ubsan)' 2000 500
        INFERD_TEST_SLOW=5 run_soak build-asan ' (asan, ubsan)' --model "$top/build-asan/tiny.gguf" --device null --faults --seconds 20
    else
        record 'api (asan, ubsan)' 0 1 0 0
    fi
    join

    read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$tally")
    awk '$2 > 0' "$tally" | while read -r _ _ _ name; do say "failed: $name"; done
    processor_seconds >"$cache/seconds"
    say "took $((SECONDS - start)) s, $(cat "$cache/seconds") s of processor time"
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
