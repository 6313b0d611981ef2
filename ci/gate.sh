#!/usr/bin/env bash
# The gate: are these backends right on the GPU of this machine?
#     gate.sh BACKEND|FILE... [OPTION...]      with the options of `treeproof check`
# Profile gpu, device cuda and ten minutes, unless the options say otherwise. Needs bash and treeproof,
# and nothing else of its repository: copy it where it suits you.
#
# All that is left lies in one folder, treeproof-gate or the one that GATE_OUT names:
#     report.html  junit.xml  summary.md  badge.json     what was found
#     check.txt  doctor.txt                              what was said on the way
#     run/                                               the run, with the smallest case of each failure
# The reports are made from run/ once the check is over, so they are there also where it was killed.
#
# Exit code: 0 clean; 1 identities violated; 2 usage or environment, such as no GPU; 3 a backend or
# identity that was asked for was not checked; 4 treeproof itself failed; 130 interrupted; above 128
# otherwise: the check was ended by a signal. On GitHub later steps find it in the output `exit-code`.
set -uo pipefail

out=${GATE_OUT:-treeproof-gate}

leave() {
    local code=$?
    [ -z "${GITHUB_OUTPUT:-}" ] || printf 'exit-code=%s\nfolder=%s\n' "$code" "$out" >>"$GITHUB_OUTPUT"
    exit "$code"
}
trap leave EXIT

# Nothing was checked: said wherever somebody looks. $2: the exit code, $3: a file with more words. Neither
# 0, of a check with --help, nor 1, of bash where it cannot open a file, is a verdict: both become 2.
refuse() {
    local code=$(($2 > 1 ? $2 : 2))
    printf 'gate: %s\n' "$1" >&2
    [ "${GITHUB_ACTIONS:-}" != true ] || printf '::error title=treeproof gate::%s\n' "$1"
    [ $# -gt 2 ] || exit "$code"
    { printf '### Nothing was checked: %s\n\n' "$1" && sed 's/^/    /' "$3"; } >"$out/summary.md"
    cat "$3" >&2
    [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$out/summary.md" >>"$GITHUB_STEP_SUMMARY"
    exit "$code"
}

[[ $# -gt 0 && $1 != -* ]] || refuse 'usage: gate.sh BACKEND|FILE... [OPTION of treeproof check...]' 2
command -v treeproof >/dev/null || refuse 'there is no command treeproof: pip install it, or activate its environment' 2
mkdir -p "$out" || refuse "$out cannot be made: name another folder in GATE_OUT" 2
[ -z "$(ls -A "$out")" ] || refuse "$out holds an earlier gate: remove it, or name another folder in GATE_OUT" 2
# Of two gates that begin at once one makes this file.
(set -C && : >"$out/doctor.txt") 2>/dev/null || refuse "$out cannot be written, or is another gate's: name another folder in GATE_OUT" 2

device=cuda
for ((i = 1; i <= $#; i++)); do
    case ${!i} in
    --device) following=$((i + 1)) && device=${!following:-} ;;
    --device=*) device=${!i#*=} ;;
    esac
done
treeproof doctor --device "$device" >"$out/doctor.txt" 2>&1 || refuse 'this machine is not ready' $? "$out/doctor.txt"
cat "$out/doctor.txt"

# The CI service is told when the reports are made, once. A signal to the gate ends the check as Ctrl-C
# does, and the reports are still made.
env -u GITHUB_ACTIONS -u GITHUB_STEP_SUMMARY treeproof check \
    --profile gpu --device cuda --time 10m "$@" --run-dir "$out/run" >"$out/check.txt" 2>&1 &
check=$!
told=''
trap 'told=yes; kill -TERM "$check" 2>/dev/null' INT TERM HUP
wait "$check"
code=$?
while [ -n "$told" ]; do # the signal ended the waiting, not yet the check
    told=''
    wait "$check"
    code=$?
done
trap '' INT TERM HUP

[ -e "$out/run/meta.json" ] || refuse "the check did not begin, exit code $code" "$code" "$out/check.txt"
cat "$out/check.txt"
[ "$code" -le 128 ] || printf 'gate: the check was ended, exit code %s; what it found until then:\n' "$code" >&2
treeproof report "$out/run" --report "$out"
reported=$?
[ "$code" -ne 0 ] || code=$reported
exit "$code"
