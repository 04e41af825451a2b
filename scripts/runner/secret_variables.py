"""Which environment variables may hold a secret, such as a token or a password.

As a program it prints the names of those that are set, one a line: launchers/horovod_ddp.sh takes them out. horovodrun
writes its environment into the command lines of its ranks, which every user of the machine can read.
"""

import os
import re

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|_PWD$|CREDENTIAL|APIKEY|KEY$|_KEY|_PAT$|_AUTH(?!_SOCK$)|WEBHOOK"
    r"|JWT|COOKIE|CONNECTION_STRING|_PW$|_SAS$|ENCRYPTIONKEY|GIT_CONFIG_VALUE",
    re.IGNORECASE,
)
"""A name that ends in _AUTH_SOCK is of a socket's path, by which ssh finds its agent. CI systems keep the header by
which git fetches in GIT_CONFIG_VALUE_<n>."""
# An address with a user and a password, also without its scheme, as of a proxy; a key of Azure.
SECRET_VALUE = re.compile(r"://[^/]*@|^[^/\s:@]+:[^/\s@]+@[^/\s]+:[0-9]+/?$|AccountKey=")
# Beginnings of tokens: GitHub, GitLab, Hugging Face, OpenAI, Amazon, Slack, PyPI, NVIDIA, Google, npm, Stripe. Parts
# of a JSON Web Token (RFC 7519) begin with {" in base64.
TOKEN = re.compile(
    r"(?<![\w-])(?:(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|A[KS]IA|xox[abepr]-|pypi-AgE|nvapi-|AIza|npm_|[rs]k_live_)[\w-]{16,}"
    r"|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]+\.eyJ[\w-]+)"
)


def is_secret(name: str, text: str) -> bool:
    """Whether the name is that of a secret, or the text is one: an address with a password, a token, a key."""
    return bool(SECRET_NAME.search(name) or SECRET_VALUE.search(text) or TOKEN.search(text))


if __name__ == "__main__":
    print(*(name for name, text in os.environ.items() if is_secret(name, text)), sep="\n")
