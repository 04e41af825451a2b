#!/usr/bin/env bash
# A real Slurm cluster of two nodes on this one host, for tests and for trying ./bench slurm.
#
#   tests/slurm_local.sh start      # as root on Debian or Ubuntu; installs munge and Slurm if missing
#   GRES=gpu:2 tests/slurm_local.sh start      # with 2 devices a node for --gres; both nodes count from 0
#   tests/slurm_local.sh status     # sinfo; exit 0 when up, 1 when not
#   tests/slurm_local.sh stop       # cancels the jobs, ends every process, removes the state folder
#
# Exit codes: 0 done, 1 failed, 2 bad usage, 3 not possible on this machine (the reason is on stderr).
#
# State (munge key and socket, slurm.conf, logs, devices) is in SLURM_LOCAL_DIR, by default /run/slurm-local.
# Another SLURM_LOCAL_DIR makes a second cluster at the same time: ports are picked free at start.
#
# What listens: munged on a Unix socket; slurmctld, both slurmd and srun on 127.0.0.1. Slurm can bind to the host
# name's address or to all: where the name resolves to another address, start refuses, and says what to do.
# LISTEN=all starts them all the same.
#
# What is not like a cluster: node1 and node2 do not resolve (`scontrol show node node1` has
# NodeAddr=127.0.0.1), each claims 8 CPUs whatever the host has, nothing binds CPUs or limits memory, and
# there is no sacct.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'slurm_local: %s\n' "$*" >&2; }
die() { local code=$1; shift; say "$@"; exit "$code"; }

[[ $(uname -s) == Linux ]] || die 3 "not possible here: Slurm needs Linux"
dir=$(realpath -m -- "${SLURM_LOCAL_DIR:-/run/slurm-local}")
nodes=(node1 node2)
programs=(munged slurmctld slurmd srun sinfo)
packages=(munge slurmctld slurmd slurm-client)
export SLURM_CONF=$dir/slurm.conf

# ---- this cluster's processes ----------------------------------------------------------------------------

has() { grep -qzxFe "$2" "$1" 2>/dev/null; }  # is the word in this file of NUL-separated words?

# All Slurm daemons work in our log folder (slurmstepd and slurmscriptd overwrite their environment, so the
# working folder is what tells); munged names our socket. Tasks carry SLURMD_NODENAME and our SLURM_CONF: the
# pair, because a user's shell may export SLURM_CONF alone.
our_pids() {
    local proc pid
    while read -r proc; do
        pid=${proc//[!0-9]/}
        case $(cat "/proc/$pid/comm" 2>/dev/null) in
            slurm*) [[ $(readlink "/proc/$pid/cwd") == "$dir/log"* ]] && echo "$pid" ;;
            munged) has "/proc/$pid/cmdline" "--socket=$dir/munge.socket" && echo "$pid" ;;
        esac
    done < <(grep -lxE 'munged|slurm.*' /proc/[0-9]*/comm 2>/dev/null || true)
    while read -r proc; do
        pid=${proc//[!0-9]/}
        [[ $pid != "$$" && $pid != "$BASHPID" ]] || continue
        if grep -qz '^SLURMD_NODENAME=' "$proc" || [[ $(<"/proc/$pid/comm") == srun ]]; then
            echo "$pid"
        fi 2>/dev/null
    done < <(grep -lzxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null || true)
    return 0
}

runs() {  # runs COMMAND [ARGUMENT]: is this daemon of ours alive?
    local pid
    for pid in $(our_pids); do
        [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "$1" ]] || continue
        has "/proc/$pid/cmdline" "${2:-$1}" && return 0
    done
    return 1
}

# ---- start -----------------------------------------------------------------------------------------------

install_missing() {
    local program missing=()
    for program in "${programs[@]}"; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    command -v apt-get >/dev/null ||
        die 3 "not possible here: no ${missing[*]} and no apt-get; install munge and Slurm by hand"
    say "installing ${packages[*]} with apt-get"
    # Debian starts what it installs; exit 101 here forbids it. An admin's own file stays as it is.
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    # apt-get has locks of its own, which root alone can take: it waits for the other one's, and not for ever
    local apt=(apt-get -q -o DPkg::Lock::Timeout=120)
    { "${apt[@]}" update && DEBIAN_FRONTEND=noninteractive \
        "${apt[@]}" -y install --no-install-recommends "${packages[@]}"; } >&2 9>&- ||
        die 3 "not possible here: apt-get could not install ${packages[*]} (see above)"
    [[ -z ${policy:-} ]] || rm -f -- "$policy"
}

free_daemon_port() {
    local port
    while port=$((20000 + RANDOM % 10000)); do
        [[ " $* " == *" $port "* ]] || (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

configure() {
    local host loopback='' ctld_port port1 port2 gres='' num_devices=0 i
    if [[ -n ${GRES:-} ]]; then
        num_devices=${GRES#gpu:}
        gres="Gres=$GRES"
    fi
    host=$(uname -n)
    # exactly 127.0.0.1: with 127.0.1.1, Debian's default, slurmstepd looks for srun on 127.0.0.1
    if [[ $(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}') == 127.0.0.1 ]]; then
        loopback='CommunicationParameters=NoInAddrAny,NoCtldInAddrAny'
    elif [[ ${LISTEN:-} != all ]]; then
        die 3 "not possible here: $host does not resolve to 127.0.0.1, so Slurm would listen on all addresses of" \
            "this host; put '127.0.0.1 $host' first in /etc/hosts, or set LISTEN=all"
    fi
    ctld_port=$(free_daemon_port)
    port1=$(free_daemon_port "$ctld_port")
    port2=$(free_daemon_port "$ctld_port" "$port1")

    mkdir -p -- "$dir"/{log,state,devices}
    chmod 755 "$dir"
    (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")  # munged refuses a key that others can read
    for ((i = 0; i < num_devices; i++)); do
        mknod "$dir/devices/gpu$i" c 1 3 || die 3 "not possible here: mknod is forbidden; start without GRES"
    done
    : >"$dir/gres.conf"
    [[ -z $gres ]] || echo "Name=gpu File=$dir/devices/gpu[0-$((num_devices - 1))]" >"$dir/gres.conf"

    # cred_expire: a requeued job waits that long (120 s by default). FirstJobId from the clock: a cluster
    # started anew must not hand out an id that names an old job's rendezvous file or log.
    cat >"$SLURM_CONF" <<CONF
# written by slurm_local.sh
ClusterName=slurm-local
SlurmctldHost=${host%%.*}(127.0.0.1)
SlurmctldPort=$ctld_port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
$loopback
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/state/%n
SlurmctldPidFile=$dir/state/slurmctld.pid
SlurmdPidFile=$dir/state/%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=1
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdTimeout=30
JobRequeue=1
KillWait=5
FirstJobId=$(($(date +%s) % 60000000 + 1))
GresTypes=gpu
NodeName=node1 NodeHostname=${host%%.*} NodeAddr=127.0.0.1 Port=$port1 CPUs=8 $gres
NodeName=node2 NodeHostname=${host%%.*} NodeAddr=127.0.0.1 Port=$port2 CPUs=8 $gres
PartitionName=local Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60
CONF
}

launch() {  # a daemon that keeps our lock or the caller's pipe open would block them for ever
    "$@" >>"$dir/log/start.log" 2>&1 </dev/null 9>&-
}

nodes_ready() {
    local states
    states=$(timeout 5 sinfo -h -N -o %t 2>/dev/null | grep -cxE 'idle|mix|alloc|comp') || true
    [[ $states == "${#nodes[@]}" ]]
}

start() {
    [[ -z ${GRES:-} || $GRES =~ ^gpu:[1-9][0-9]?$ ]] ||
        die 2 "GRES=$GRES: give gpu:N with N from 1 to 99, or nothing"
    # Slurm's files have no quoting that holds everywhere, and a Unix socket's path ends at 107 characters
    [[ $dir =~ ^[A-Za-z0-9_./-]{2,70}$ ]] ||
        die 2 "SLURM_LOCAL_DIR=$dir: Slurm needs at most 70 letters, digits and _./- here; choose another"
    [[ $EUID == 0 ]] || die 3 "not possible here: start needs root, for munged and slurmd; run it with sudo"
    install_missing

    local node deadline=$((SECONDS + 30))
    if [[ -z $(our_pids) ]]; then
        remove_state
        fresh=yes
        configure
    elif [[ -n ${GRES:-} ]] && ! grep -q "Gres=$GRES\$" "$SLURM_CONF"; then
        die 2 "the cluster is up without GRES=$GRES; stop it first"
    fi
    # --force: munged asks that all users can reach its socket, which a private folder forbids
    runs munged ||
        launch munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
            --pid-file="$dir/state/munged.pid" --log-file="$dir/log/munged.log" \
            --seed-file="$dir/state/munge.seed" ||
        failed "munged does not start"
    runs slurmctld || launch slurmctld || failed "slurmctld does not start"
    for node in "${nodes[@]}"; do
        runs slurmd "$node" || launch slurmd -N "$node" || failed "slurmd for $node does not start"
    done
    until nodes_ready; do
        ((SECONDS < deadline)) || failed "after 30 s the nodes are not ready"
        sleep 0.1
    done
    fresh=''
    say "two nodes are up; state and logs are in $dir"
    printf 'export SLURM_CONF=%q\n' "$SLURM_CONF"
}

failed() {
    timeout 5 sinfo -N -o '%N %t %E' >&2 || true
    tail -q -n 5 -- "$dir"/log/*.log >&2 || true
    die 1 "$*; the logs end as above"
}

# ---- stop ------------------------------------------------------------------------------------------------

remove_state() {
    [[ -e $dir ]] || return 0
    # an empty folder or one of ours; never what a mistyped SLURM_LOCAL_DIR points at
    [[ -z $(ls -A -- "$dir") ]] || grep -qx '# written by slurm_local.sh' "$SLURM_CONF" 2>/dev/null ||
        die 2 "$dir has files that are not this script's; set SLURM_LOCAL_DIR to a new folder"
    rm -rf -- "$dir"
}

end_processes() {  # end_processes SIGNAL SECONDS: true when none is left
    local pids deadline=$((SECONDS + $2))
    while mapfile -t pids < <(our_pids) && ((${#pids[@]} > 0)); do
        kill -s "$1" -- "${pids[@]}" 2>/dev/null || true
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
}

stop() {
    local jobs announced='' deadline=$((SECONDS + 10))  # twice KillWait
    if [[ ! -e $dir && -z $(our_pids) ]]; then
        say "nothing runs in $dir"
        return
    fi
    [[ $EUID == 0 ]] || die 2 "stop needs root; run it with sudo"
    if runs slurmctld; then
        while jobs=$(timeout 5 squeue -h -o %A 2>/dev/null) && [[ -n $jobs ]]; do
            [[ -n ${announced:-} ]] || say "cancelling the jobs ${jobs//$'\n'/ }; up to 10 s"
            announced=yes
            # shellcheck disable=SC2086  # one argument a job
            scancel $jobs 2>/dev/null || true
            ((SECONDS < deadline)) || break
            sleep 0.2
        done
    fi
    end_processes TERM 5 || end_processes KILL 10 ||
        die 1 "these processes do not end: $(our_pids | tr '\n' ' ')"
    remove_state
    say "stopped; $dir is removed"
}

on_exit() {
    local code=$?
    [[ -z ${policy:-} ]] || rm -f -- "$policy"
    if [[ -n ${fresh:-} ]]; then
        stop
    fi
    exit "$code"
}

[[ $# == 1 ]] || die 2 "usage: slurm_local.sh start|stop|status"
case $1 in
    start | stop)
        # one at a time, and two clusters that start together must not pick the same ports
        exec 9<"${BASH_SOURCE[0]}"
        flock -w 120 9 || die 1 "another slurm_local.sh has run for 120 s; wait for it or end it"
        trap on_exit EXIT
        trap 'say interrupted; exit 130' INT
        trap 'say terminated; exit 143' TERM
        "$1"
        ;;
    status)
        { [[ -e $SLURM_CONF ]] && timeout 5 sinfo -N 2>/dev/null; } ||
            die 1 "no cluster runs in $dir; start it with: tests/slurm_local.sh start"
        ;;
    -h | --help) sed -n '2,/^set/{/^set/!p}' "${BASH_SOURCE[0]}" ;;
    *) die 2 "'$1' is not one of start, stop, status" ;;
esac
