"""Words of a result set that name a machine, its user or their folders, and what stands for each in a published set.

A host becomes `host 1`, a user `user`, a path its last name. Values of variables whose name speaks of a secret are left
out.
"""

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.common.rows import read_table
from scripts.results.result_set import ResultSet
from scripts.shared.repository import ROOT

PLACES = ("config", "data", "checkpoint_dir", "container")
"""Settings that may be paths."""
OF_THE_CHECKOUT = ("configs", "data", "results")
HOST_VARIABLES = ("HOSTS", "RDZV_ENDPOINT")
COMMON = {"root", "user", "ubuntu", "admin", "debian", "localhost", "runner", "nobody", "cpu", "gpu", "cuda"}
"""Names of hosts and users that say nothing."""
SYSTEM = ("/usr/", "/lib/", "/bin/", "/proc/", "/sys/", "/dev/")
PATH = re.compile(r"(?<![\w.~:/>-])(?:~[\w-]*|\.\.?)?/(?:[\w.@+~-]+/)+[\w.@+~-]*")
SECRET = re.compile(r"\b(\w*(?:AUTH|KEY|TOKEN|SECRET|PASS|CRED)\w*=)[^\s\"']+")
HIDDEN_OPTION = re.compile(r"((?:^|\s)(?:-H|--hosts|--rdzv[-_]endpoint|--account|--qos)[= ])\S+")


def private_words(results: ResultSet, folders: Iterable[Path]) -> dict[str, str]:
    """The longest first."""
    variables = results.environment.get("variables", {})
    settings = [read_table(folder, "settings") for folder in folders]
    halves = [json.loads(text) for table in settings for name in ("asked", "met") for text in table[name] if text]
    listed = " ".join(str(variables.get(name) or "") for name in HOST_VARIABLES)
    hosts = [str(half["host"]) for half in halves if half.get("host")]
    hosts += [socket.gethostname(), socket.gethostname().split(".")[0]]
    hosts += [word.partition(":")[0] for word in re.split(r"[\s,]+", listed)]
    hosts = [host for host in dict.fromkeys(hosts) if len(host) > 2 and host not in COMMON]
    words = {host: f"host {number}" for number, host in enumerate(hosts, 1)}
    words |= {
        name: "user" for name in (os.environ.get("USER", ""), Path.home().name) if len(name) > 2 and name not in COMMON
    }
    places = {half[name] for half in halves for name in PLACES if isinstance(half.get(name), str)}
    words |= {place: public_path(place) for place in places if "/" in place.strip("/") and "://" not in place}
    words |= {f"{ROOT}/": "", str(ROOT): "."}
    if Path.home() != Path("/"):  # of a container
        words[str(Path.home())] = "~"
    words |= {
        str(path): f"results/{results.name}" for path in (results.path, results.path.resolve()) if "/" in str(path)
    }
    words |= {json.dumps(word)[1:-1]: stands for word, stands in words.items()}  # as JSON writes what is beyond ASCII
    changed = [(word, stands) for word, stands in words.items() if word != stands]
    return dict(sorted(changed, key=lambda pair: -len(pair[0])))


def public_path(text: str) -> str:
    """Its last name; of what lies directly in a folder of the checkout that, too, such as data/imagenet-mini."""
    parts = Path(text).parts
    return "/".join(parts) if len(parts) == 2 and parts[0] in OF_THE_CHECKOUT else Path(text).name


def without_words(text: str, words: Mapping[str, str]) -> str:
    if not words:
        return text
    patterns = [
        ("" if word.startswith("/") else r"(?<![\w./~-])")
        + re.escape(word)
        + ("" if word.endswith("/") else r"(?![\w-])")
        for word in words
    ]
    return re.sub("|".join(patterns), lambda found: words[found[0]], text)


def without_private(text: str, words: Mapping[str, str]) -> str:
    """Nor other paths than the system's, hosts of a command, secrets."""
    text = without_words(HIDDEN_OPTION.sub(r"\1...", SECRET.sub(r"\1...", text)), words)
    return PATH.sub(lambda found: found[0] if found[0].startswith(SYSTEM) else Path(found[0]).name, text)
