#!/usr/bin/env bash
# horovodrun starts one process per GPU, here, on HOSTS=a:4,b:4, or by ssh on all nodes of a Slurm job.
source "$(dirname "$0")/lib.sh"
"${HERE[@]}" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("horovod") is None)' ||
  skip "Horovod is not installed for ${CONTAINER:-$PYTHON}; run: scripts/setup/horovod.sh"
REACHED_BY=() # horovodrun's option for the interface: left to find one, it starts a server on all of them
if [ -z "${HOSTS:-}" ] && [ "$NODES" = 1 ]; then
  over_loopback
  HOSTS=localhost:$NPROC
else
  [ -z "${CONTAINER:-}" ] || skip "horovodrun starts ranks on other nodes by ssh, outside of the container; take one node"
  if [ -n "${HOSTS:-}" ]; then # which may have different numbers of ranks; of their cores nobody knows better
    NPROC=$(awk -F : -v RS=, '{ sum += $2 } END { print sum }' <<<"$HOSTS") NODES=1
    export NPROC NODES NUM_CORES=$NPROC
  else
    in_slurm_job || skip "horovodrun reads no NNODES; name the machines and their ranks: HOSTS=node0:8,node1:8"
    hosts_of_job
    HOSTS=$(printf ",%s:$NPROC" "${HOST_NAMES[@]}")
    HOSTS=${HOSTS#,}
  fi
  remote='' interface=${GLOO_SOCKET_IFNAME:-}
  read -ra names <<<"$(sed -E 's/:[0-9]+(,|$)/ /g' <<<"$HOSTS")"
  for host in "${names[@]}"; do
    route=$(ip -o route get "$(getent ahostsv4 "$host" | awk 'NR == 1 { print $1 }')" 2>/dev/null) || route=
    [[ $route != local* ]] || continue # this machine
    [[ ! $route =~ ' dev '([^ ]+) ]] || interface=${interface:-${BASH_REMATCH[1]}}
    remote=$host code=0
    ssh -o BatchMode=yes -o ConnectTimeout=5 "$host" "$(printf 'cd -- %q || exit 9' "$PWD")" >/dev/null 2>&1 || code=$?
    [ "$code" != 9 ] || skip "this checkout is not on $host; put it where all hosts see it"
    [ "$code" = 0 ] || skip "horovodrun starts ranks on other nodes by ssh, and \`ssh $host\` fails or asks a question; set up a key without a passphrase, and add the host to known_hosts"
  done
  if [ -n "$remote" ]; then
    [ -n "$interface" ] || skip "no network interface is known that leads to $remote; name it, such as GLOO_SOCKET_IFNAME=eth0"
    REACHED_BY=(--network-interfaces "$interface")
  fi
fi
record "${HERE[@]}" -m horovod.runner.launch --gloo --disable-cache -np "$((NPROC * NODES))" -H "$HOSTS" "${REACHED_BY[@]}" \
  "${INTERPRETER[-1]}" -m benchmarks.horovod_ddp "${OPTIONS[@]}"
