"""In one Slurm job on two nodes: which strategies span them and how, and what runs in a container.

    .venv/bin/python -m pytest tests/runner/test_over_nodes.py

Reads the command lines of launchers, with programs on PATH that stand for Slurm, ssh and containers.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import ROOT, STRATEGIES, SYNTHETIC_YAML, after, environment, look_at_folder, put

from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system import machine
from scripts.runner import run_plan
from scripts.strategies import strategy_list

ON_ONE_NODE = {"single", "dataparallel", "model_parallel", "ddp_spawn"}
OTHERWISE = {"slurm", "horovod_ddp"}  # by srun and by ssh; all others by torchrun
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")


@pytest.fixture
def launched(recorder, bin_path, tmp_path, tiny_config, tiny_data):
    """launched(strategy, **environment): what a launcher runs in a job on two nodes with two tasks each; `words`,
    their environment `env`, the supervisor's own words, and the half that was `asked`."""

    def launch(name: str, **variables) -> dict:
        job = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "node[1-2]", "ALLOCATION": 7, "NODES": 2, "NPROC": 2}
        job |= {"TASKS_PER_NODE": 2, "CPUS_PER_TASK": 3, "THREADS_PER_RANK": 3, "SLURM_CONF": "/dev/null"}
        ours = {"PATH": f"{bin_path}:{os.environ['PATH']}", "RESULTS": tmp_path / "a set", "CONFIG": tiny_config}
        ours |= {"DATA": tiny_data, "PASSED_ON": "scripts.runner.run_plan"}
        env = environment(**recorder.variables | ours | job | variables)
        done = subprocess.run([ROOT / "launchers" / f"{name}.sh"], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        call = recorder.calls()[-1]
        at = call["words"].index("--") if "--" in call["words"] else len(call["words"])
        folder = RunFolder(Path(env["RESULTS"]) / "logs" / call["env"]["RUN_ID"])
        found = {"words": call["words"][at + 1 :], "supervisor": call["words"][:at], "env": call["env"]}
        return found | {"asked": folder.settings()["asked"]}

    return launch


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_launcher_spans_the_nodes_or_says_that_it_cannot(monkeypatch, name):
    """Protects the comparison: no strategy runs on fewer nodes than the plan, its settings and its forecast have."""
    text = (ROOT / "launchers" / f"{name}.sh").read_text().splitlines()
    output = [word for word in ("on_one_node", "set_torchrun_command") if word in text]
    assert output == ([] if name in OTHERWISE else ["on_one_node" if name in ON_ONE_NODE else "set_torchrun_command"])
    for variable, value in (("HOSTS", ""), ("NODES", "2"), ("TASKS_PER_NODE", "4")):
        monkeypatch.setenv(variable, value)
    assert strategy_list.total_ranks_and_nodes(name, 4) == ((4, 1) if name in ON_ONE_NODE else (8, 2))


@pytest.mark.medium
def test_torchrun_is_started_on_every_node(launched):
    """Protects the ranks' numbers: one torchrun a node, which knows its place, and meets the others at the first."""
    run = launched("ddp")
    step, torchrun = run["words"][: run["words"].index("bash")], run["words"][run["words"].index("-m") :]
    assert step[0] == "srun" and "--kill-on-bad-exit=1" in step
    for flag, value in (("--nodes", "2"), ("--ntasks", "2"), ("--ntasks-per-node", "1"), ("--cpus-per-task", "6")):
        assert after(step, flag) == value
    status = Path(run["env"]["RESULTS"], "logs", run["env"]["RUN_ID"]).stat()
    assert after(step, "--job-name") == f"{run['env']['RUN_ID']}.{status.st_dev}-{status.st_ino}"
    assert "PET_NODE_RANK=$SLURM_NODEID" in run["words"][run["words"].index("node") - 1]
    for flag, value in (("--nnodes", "2"), ("--nproc-per-node", "2"), ("--rdzv-backend", "static")):
        assert after(torchrun, flag) == value
    assert re.fullmatch(r"10\.0\.0\.1:2\d{4}", after(torchrun, "--rdzv-endpoint"))
    assert run["env"]["NPROC"] == "4" and "RENDEZVOUS_FILE" not in run["env"]
    assert "GLOO_SOCKET_IFNAME" not in run["env"]  # nodes cannot talk over loopback
    assert (run["asked"]["ranks"], run["asked"]["nodes"]) == (4, 2)


def test_srun_starts_all_tasks(launched):
    """Protects the one that needs no torchrun; inside the job it submits none."""
    words = launched("slurm")["words"]
    assert words[0] == "srun" and after(words, "--ntasks") == "4" and after(words, "--cpus-per-task") == "3"


@pytest.mark.medium
def test_ranks_of_two_gpus_are_half_as_many_on_each_node(launched):
    """Protects 2 ranks x 2 nodes on machines of 4 GPUs from being 4 on each."""
    run = launched("hybrid_parallel", NUM_GPUS=4, GPUS_PER_NODE=4, NPROC=4, TASKS_PER_NODE=4)
    assert after(run["words"], "--nproc-per-node") == "2" and run["env"]["NPROC"] == "4"


@pytest.mark.parametrize("name", sorted(ON_ONE_NODE))
def test_what_cannot_span_nodes_has_the_first(launched, name):
    """Protects their rows: the ranks of one node, on it, and asked so."""
    run = launched(name)
    assert run["words"][1:3] == ["-m", f"benchmarks.{name}"]
    assert run["env"]["NPROC"] == ("2" if name == "ddp_spawn" else "1")
    assert (run["asked"]["ranks"], run["asked"]["nodes"]) == (2, 1)


@pytest.mark.medium
def test_horovod_spans_nodes_by_ssh_or_is_skipped(launched, bin_path):
    """Protects Horovod's row from being of fewer ranks than its neighbours'."""
    put(bin_path, scontrol="printf 'localhost\\n127.0.0.2\\n'")
    run = launched("horovod_ddp", NPROC=4, TASKS_PER_NODE=4, NUM_CORES=None)
    assert after(run["words"], "--network-interfaces") == "lo"
    assert after(run["words"], "-H") == "localhost:4,127.0.0.2:4" and after(run["words"], "-np") == "8"
    assert run["env"]["NUM_CORES"] == str(2 * machine.num_cores())
    skipped = launched("horovod_ddp", SSH="no")
    assert skipped["words"] == [] and "`ssh 127.0.0.2` fails or asks a question" in after(
        skipped["supervisor"], "--skip"
    )
    assert (skipped["asked"]["ranks"], skipped["asked"]["nodes"]) == (4, 2)


def test_the_one_rank_that_fp16_is_measured_by_stays_on_one_node(monkeypatch, tmp_path):
    """Protects x one rank on V100s: the run of one rank is no run of one rank on each node, and no round lacks it."""
    for name, value in {
        "NODES": 2,
        "TASKS_PER_NODE": 4,
        "NPROC": 4,
        "NUM_GPUS": 4,
        "STRATEGIES": "single ddp_amp",
    }.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / "a.yaml").write_text(SYNTHETIC_YAML.replace("global_batch: 4", "global_batch: 8"))
    monkeypatch.setenv("CONFIG", str(tmp_path / "a.yaml"))
    monkeypatch.setattr("benchmarks.common.system.machine.min_compute_capability", lambda: (7, 0))
    monkeypatch.setattr("benchmarks.common.system.machine.usable_gpus", lambda: 4)
    variables = run_plan.read_variables()
    runs = [run for run in run_plan.plan_strategies(variables) if run.round == 1 and run.strategy == "ddp_amp"]
    assert sorted((run.requested["ranks"], run.requested["nodes"], run.variables.get("NODES")) for run in runs) == [
        (1, 1, "1"),
        (8, 2, None),
    ]


@pytest.mark.parametrize("on_node", ["shared", "gone", pytest.param("of another user", marks=AS_ROOT)])
def test_a_task_runs_nothing_that_another_user_of_its_node_has_put_there(tmp_path, bin_path, on_node):
    """Protects from another user of a node that does not have the checkout: Slurm starts the task in /tmp, where
    anybody can put a folder benchmarks; and the folder of this path may be theirs. Mutants: a step without cd; without
    the owner."""
    is_there = on_node == "shared"
    checkout, fallback = tmp_path / "a checkout", tmp_path / "fallback"
    shutil.copytree(ROOT / "launchers", checkout / "launchers")
    fallback.mkdir()
    put(bin_path, srun=f'cd "{fallback}"; while [ "$1" != bash ]; do shift; done; exec "$@"')
    lines = [
        "set -eu",
        'cd -- "$1"',
        "source launchers/cluster.sh",
        "CONTAINED=() RESULTS=. RUN_ID=x",
        "set_step_command 1 1 1",
    ]
    change = {"shared": "", "gone": 'mv -- "$1" "$1 gone"', "of another user": 'chown 12345 -- "$1"'}
    lines += [change[on_node], '"${STEP[@]}" touch ran']
    env = environment(PATH=f"{bin_path}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", "\n".join(lines), "bash", checkout], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) == is_there and not (fallback / "ran").exists(), done.stderr
    assert (checkout / "ran").exists() == is_there


@pytest.mark.parametrize("on_node", ["shared", "gone", pytest.param("of another user", marks=AS_ROOT)])
def test_a_container_mounts_nothing_that_another_user_of_its_node_has_put_there(tmp_path, bin_path, on_node):
    """Protects from the same where srun starts the task in a container, in which owners have other numbers. Mutant: the
    look without containers only."""
    (tmp_path / "a checkout").mkdir()
    put(
        bin_path,
        srun=f'echo "$1 $2 $3 $4 $5 $6 $7" >>"{tmp_path}/calls"; while [ "$1" != bash ]; do shift; done; exec "$@"',
    )
    lines = [
        "set -eu",
        f'source "{ROOT}/launchers/cluster.sh"; cd -- "$1"',
        'skip() { echo "skipped: $1"; exit 0; }',
        "step_name() { echo x; }; CONTAINED=(--container-image x)",
        {"shared": "", "gone": 'mv -- "$1" "$1 gone"', "of another user": 'chown 12345 -- "$1"'}[on_node],
        'PWD=$1; stat() { if [ "$*" = "-c %u ." ]; then echo 0; else command stat "$@"; fi; }',
        'set_step_command 2 4 1; echo "${STEP[*]}"',
    ]
    env = environment(PATH=f"{bin_path}:{os.environ['PATH']}")
    words = ["bash", "-c", "\n".join(lines), "bash", tmp_path / "a checkout"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("--nodes 2 --ntasks 2 --ntasks-per-node 1 bash") and done.returncode == 0, done.stderr
    assert ("another user's folder on one" in done.stdout) == (on_node != "shared")
    assert ("--container-image x" in done.stdout) == (on_node == "shared")


@pytest.mark.parametrize("on_node", ["shared", "gone", pytest.param("of another user", marks=AS_ROOT)])
def test_the_readmes_srun_lines_run_nothing_that_another_user_of_the_node_has_put_there(tmp_path, bin_path, on_node):
    """Protects whoever pastes them from the same. Mutants: a line without cd; without the owner; without "$PWD"."""
    is_there = on_node == "shared"
    checkout, fallback = tmp_path / "a checkout", tmp_path / "fallback"
    installer = 'touch "$(dirname "$0")/ran-$(basename "$0")"; echo "$FORCE $PYTHON"'
    for folder in (checkout, fallback):
        (folder / "scripts").mkdir(parents=True)
        put(folder / "scripts" / "setup", **{"install_horovod.sh": installer, "install_apex.sh": installer})
    change, undo = {
        "shared": ("true", "true"),
        "gone": (f'mv -- "{checkout}" "{checkout} gone"', f'mv -- "{checkout} gone" "{checkout}"'),
        "of another user": (f'chown 12345 -- "{checkout}"', "true"),
    }[on_node]
    task = f'cd "{fallback}"; while [ "$1" != bash ]; do shift; done; "$@"; code=$?'
    put(bin_path, srun=f"{change}; {task}; {undo}; exit $code")
    text = (ROOT / "launchers" / "README.md").read_text()
    define, *steps = re.findall(r"^    ((?:here=|srun ).*)$", text, re.MULTILINE)
    lines = "\n".join(['cd -- "$1"', define, *(f"{step} || failed=1" for step in steps), "exit ${failed:-0}"])
    env = environment(PATH=f"{bin_path}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", lines, "bash", checkout], env=env, capture_output=True, text=True)
    assert len(steps) == 2 and (done.returncode == 0) == is_there, done.stderr
    ran = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("ran-*"))
    expected = [f"a checkout/scripts/setup/ran-install_{name}.sh" for name in ("apex", "horovod")]
    assert ran == (expected if is_there else [])
    assert done.stdout.split("\n")[:-1] == ([f"1 {checkout}/.venv/bin/python"] * 2 if is_there else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="makes folders of another user")
@pytest.mark.parametrize(
    ("on_node", "is_same"),
    [
        ("shared", True),
        ("a link of the user's above", True),
        ("a link of another user above", False),
        ("a link of another user", False),
        ("a link by a link of another user", False),
        ("a link by a link of the user's with dots", True),
        ("a folder of another user above", False),
        ("a folder of everybody above", False),
        ("a folder of everybody, sticky, above", True),
    ],
)
def test_a_node_whose_way_to_the_checkout_is_another_users_is_refused(tmp_path, on_node, is_same):
    """Protects from whoever can turn the path elsewhere between the look and the start: first to a folder of the
    user's, and then to another. Mutants: the last folder's owner alone; no links; no links between
    the path and where it ends; no mode."""
    real, above = tmp_path / "real", tmp_path / "above"
    for folder in (real / "checkout", above / "checkout"):
        folder.mkdir(parents=True)
    words = [f'source "{ROOT}/launchers/cluster.sh"', 'folder_owners "$1"']
    env = environment()
    command = ["bash", "-c", "; ".join(words), "bash", above / "checkout"]
    owners = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()
    if "link" in on_node:
        moved = above if "above" in on_node else above / "checkout"
        shutil.rmtree(moved)
        target = real if moved == above else real / "checkout"
        if "by a link" in on_node:  # the user's leads to one whose target is the user's
            (hops := tmp_path / "hops").mkdir()
            moved.symlink_to("../hops/./hop/../real//checkout" if "dots" in on_node else hops / "hop/checkout")
            moved, target = hops / "hop", real
        moved.symlink_to(target)
        os.chown(moved, 12345 if "another" in on_node else 0, -1, follow_symlinks=False)
    elif "another user" in on_node:
        os.chown(above, 12345, -1)
    elif "everybody" in on_node:
        above.chmod(0o1777 if "sticky" in on_node else 0o777)
    words = [f'source "{ROOT}/launchers/cluster.sh"', 'bash -c "$LOOK_AT_FOLDER" "$@"']
    command = ["bash", "-c", "; ".join(words), "bash", above / "checkout", "0", owners]
    assert (subprocess.run(command, env=env).returncode == 0) == is_same


@pytest.mark.parametrize("script", ["slurm_all_job.sh", "slurm_run_job.sh"])
@pytest.mark.parametrize("folder", ["gone", pytest.param("of another user", marks=AS_ROOT)])
def test_a_job_runs_nothing_that_another_user_of_its_node_has_put_there(tmp_path, script, folder):
    """Protects from the same on the job's first node. Mutants: a script without cd; without the owner."""
    plant = f"touch '{tmp_path}/ran'"
    put(tmp_path / "launchers", **{"cluster.sh": plant, "all.sh": plant})
    if folder == "of another user":
        shutil.copytree(tmp_path / "launchers", tmp_path / folder / "launchers")
        os.chown(tmp_path / folder, 12345, -1)
    job = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "node1", "RESULTS": tmp_path, "CHECKOUT_OWNER": os.geteuid()}
    job |= {"SLURM_SUBMIT_DIR": tmp_path / folder, "CHECKOUT_LOOK": look_at_folder()}
    command = [ROOT / "launchers" / script, "launchers/all.sh"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(**job), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "a folder that all nodes share" in done.stderr and not (tmp_path / "ran").exists()


# --- containers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["apptainer", pytest.param("singularity", marks=pytest.mark.medium)])
@pytest.mark.medium
def test_apptainer_runs_the_scripts_of_every_node(launched, bin_path, tmp_path, tiny_data, program):
    """Protects CONTAINER=: the image's interpreter, with the folders that a run needs, and the GPUs."""
    put(bin_path, **{program: ""})
    image = {"CONTAINER": "/images/torch.sif", "PACKED": tmp_path / "packed images"}
    words = launched("single", **image)["words"]
    assert words[:2] == [str(bin_path / program), "exec"] and "--nv" not in words
    mounted = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert mounted == [str(ROOT), str(tmp_path / "a set"), str(tiny_data), str(image["PACKED"])]
    assert words[words.index("/images/torch.sif") :][:4] == ["/images/torch.sif", "python3", "-m", "benchmarks.single"]
    run = launched("ddp", NUM_GPUS=2, GPUS_PER_NODE=2, **image)
    assert run["words"][0] == "srun" and "--nv" in run["words"] and run["asked"]["container"] == image["CONTAINER"]
    inner = run["words"][run["words"].index("node") + 1 :]
    assert inner[0] == str(bin_path / program) and after(inner, "python3") == "-m"
    if program == "apptainer":
        assert "ssh, outside of the container" in after(launched("horovod_ddp", **image)["supervisor"], "--skip")


@pytest.mark.medium
def test_pyxis_takes_the_image_in_sruns_own_words(launched, bin_path, tmp_path, tiny_data):
    """Protects clusters with pyxis, where one process needs a step of its own, too."""
    put(bin_path, srun="echo '  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'")
    images = shutil.copytree(tiny_data, tmp_path / "images")
    for name, tasks in (("ddp", "2"), ("slurm", "4"), ("single", "1")):
        folders = {"PACKED": "/packed/größe", "RESULTS": tmp_path / "set", "DATA": images}
        words = launched(name, CONTAINER="nvcr.io#nvidia/pytorch:25.01-py3", **folders)["words"]
        assert words[0] == "srun" and after(words, "--ntasks") == tasks
        assert after(words, "--container-image") == "nvcr.io#nvidia/pytorch:25.01-py3"
        mounts = ",".join(f"{path}:{path}" for path in (ROOT, tmp_path / "set", images, "/packed/größe"))
        assert after(words, "--container-mounts") == mounts and after(words, "--container-workdir") == str(ROOT)
        assert "python3" in words and "apptainer" not in words
    assert after(words, "--relative") == "0"  # the first node


@pytest.mark.parametrize("image", ["/images/torch.sif", "nvcr.io#nvidia/pytorch:25.01-py3"])
@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("DATA", "images:/usr"),
        ("PACKED", "images,x"),
        ("RESULTS", "a:/usr"),
        ("DATA", "plain-images"),
        ("DATA", "/usr"),
        ("DATA", "/library/images"),
    ],
)
def test_no_folder_is_mounted_over_the_images_own(tmp_path, bin_path, variable, name, image):
    """Protects the image's programs from a folder's name, which the configuration of somebody else's set may choose:
    --bind images:/usr would run what lies in images. Mutants: no check; a check of DATA only, of colons only."""
    put(bin_path, apptainer="", srun="echo --container-image=IMAGE")
    user_variables = {"CONTAINER": image, "PATH": f"{bin_path}:{os.environ['PATH']}", variable: tmp_path / name}
    command = ["bash", "-c", "set -eu; source launchers/cluster.sh; set_container_command"]
    done = subprocess.run(command, cwd=ROOT, env=environment(**user_variables), capture_output=True, text=True)
    if name in ("plain-images", "/library/images"):
        assert done.returncode == 0, done.stderr
    elif name == "/usr":
        assert done.returncode == 2 and "would hide the folder of that name in the image" in done.stderr
    else:
        assert done.returncode == 2 and "may have a colon or a comma" in done.stderr


HIDING = """/opt/conda /opt/venv/lib /opt /usr/share /usr/local/cuda /usr/src/x /var /var/lib /root /root/.local /proc/1
/sys/fs /dev /dev/pts /dev/shm /run /run/user /nix/store /boot /etc/ld.so.conf.d /lib64 /usr/lib32 /bin /sbin""".split()
PASSING = """/dev/shm/images /var/tmp/images /run/media/disk /mnt/images /home/ann /srv/x /scratch/opt /data /rootless
/usrs /variety""".split()


@pytest.mark.parametrize("variable", ["DATA", "PACKED"])
def test_no_folder_of_a_system_is_mounted_over_the_images_own(tmp_path, bin_path, variable):
    """Protects the image's programs from the path of the data in somebody else's configuration: the host's /opt/conda
    hid the image's, with its Python. What the user names alone may lie in /opt or /root, as a checkout does. Mutants:
    the names of /usr alone; the same for all folders; data below the checkout refused; /dev/shm/images refused."""
    put(bin_path, apptainer="", srun="")
    ours = {"CONTAINER": "x.sif", "PATH": f"{bin_path}:{os.environ['PATH']}", "DATA": "", "PACKED": "", "RESULTS": ""}
    look = """set -eu; source launchers/cluster.sh
        for folder in $FOLDERS; do (export $VARIABLE="$folder"; set_container_command) || echo "$folder"; done"""

    def refused(folders: list[str]) -> list[str]:
        env = environment(**ours, FOLDERS=" ".join(folders), VARIABLE=variable)
        done = subprocess.run(["bash", "-c", look], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    links = [folder for folder in HIDING if os.path.realpath(folder) not in (folder, f"/usr{folder}")]
    hiding = [folder for folder in HIDING if folder not in links]
    own = ["/opt/venv/lib", "/usr/share", "/usr/local/cuda", "/usr/src/x", "/var/lib", "/root/.local"]
    own += ["/dev/pts", "/dev/shm", "/run/user"]
    assert refused(hiding) == [folder for folder in hiding if variable == "DATA" or folder not in own]
    assert refused([folder for folder in PASSING if os.path.realpath(folder) == folder]) == []
    assert refused([str(ROOT / "data/imagenet-mini")]) == []


@pytest.mark.parametrize("name", ["$(id)", "`id`", 'a"b', "a\\b", "a\nb", "a /usr", "a;b", "größe_1+@~=%"])
@pytest.mark.parametrize("variable", ["DATA", "STRATEGY_DIR"])
def test_no_folders_name_is_run_by_pyxis(tmp_path, bin_path, variable, name):
    """Protects the user's account from the path of the data in somebody else's configuration: pyxis writes the path
    into a bash file, in double quotes, where $(...) runs, and a space ends the path. Apptainer gets the path as one
    word. Mutants: no check; $ alone is refused; a range of letters by the locale, which refuses ö in C."""
    put(bin_path, apptainer="", srun="echo --container-image=IMAGE")
    ours = {"PATH": f"{bin_path}:{os.environ['PATH']}", "LC_ALL": "C", variable: tmp_path / name}
    command = ["bash", "-c", "set -eu; source launchers/cluster.sh; set_container_command"]
    for image in ("/images/torch.sif", "nvcr.io#nvidia/pytorch:25.01-py3"):
        env = environment(CONTAINER=image, **ours)
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if name.startswith("größe") or image.endswith(".sif"):
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 2 and "may have only letters, digits and" in done.stderr, (image, done.stderr)


def test_a_refused_folder_does_not_steer_the_terminal(bin_path):
    """Protects the terminal from the path of the data in somebody else's configuration. Mutant: echo."""
    put(bin_path, apptainer="", srun="")
    user_variables = {"CONTAINER": "x.sif", "PATH": f"{bin_path}:{os.environ['PATH']}", "DATA": "/x\x1b]0;a\x07:y"}
    command = ["bash", "-c", "set -eu; source launchers/cluster.sh; set_container_command"]
    done = subprocess.run(command, cwd=ROOT, env=environment(**user_variables), capture_output=True, text=True)
    assert done.returncode == 2 and "\\E]0;a" in done.stderr and "\x1b" not in done.stderr and "\x07" not in done.stderr
