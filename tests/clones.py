"""A repository with this suite, for tests of what starts commits: ab."""

import shlex
import shutil
import subprocess
import time
from pathlib import Path

from support import ROOT, SYNTHETIC_YAML, hear_sigint, start_bench

from scripts.shared.repository import CHECKOUTS_PREFIX

# Short, and three windows: what is tested is the sitting, not the machine.
SHORT = SYNTHETIC_YAML + "epochs: 1\nsteps: 8\nwarmup_steps: 1\nwindows: 3\nwindow_steps: 2\nworkers: 0\n"
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


class Clone:
    """The suite as it is here, in commits of its own, at a path with a space. Worktrees of what it runs are made in its
    results/."""

    def __init__(self, folder: Path):
        self.folder = folder / "a clone"
        for part in ("benchmarks", "configs", "launchers", "scripts"):
            shutil.copytree(ROOT / part, self.folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "bench", self.folder)
        (self.folder / ".gitignore").write_text("__pycache__/\n/results/\n")
        (self.folder / "short.yaml").write_text(SHORT)
        self.git("init", "-q", "-b", "main")
        self.commit("the suite")
        self.variables = {"CONFIG": self.folder / "short.yaml", "STRATEGY": "single", "REPEATS": 2, "TMPDIR": folder}
        self.variables |= {"DATA": "unused"}  # images are synthetic

    def git(self, *words: str) -> str:
        return subprocess.run([*GIT, "-C", self.folder, *words], check=True, capture_output=True, text=True).stdout

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD").strip()

    def start(self, **variables) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        variables = self.variables | variables
        sides = [str(variables.pop(name)) for name in ("A", "B")]
        return start_bench(
            self.folder, f"ab {shlex.join(sides)}", **variables, cwd=self.folder, preexec_fn=hear_sigint, **pipes
        )

    def run(self, **variables) -> subprocess.CompletedProcess:
        process = self.start(**variables)
        out, err = process.communicate(timeout=1500)
        print(out, err)
        assert "Traceback" not in err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left_over(self) -> list:
        """Worktrees besides the clone itself, and their folders."""
        listed = [text for text in self.git("worktree", "list", "--porcelain").split("\n\n") if text.strip()]
        return [*listed[1:], *self.folder.glob(f"results/{CHECKOUTS_PREFIX}*")]

    def until_one_runs(self, process: subprocess.Popen) -> None:
        """Until a run that counts has its folder."""
        while not [*self.folder.glob("results/*/?/logs/single-1-*/run.log")]:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
