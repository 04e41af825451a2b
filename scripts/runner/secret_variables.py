"""Which environment variables may hold a secret, such as a token or a password.

As a program it prints the names of those that are set, one a line: launchers/horovod_ddp.sh takes them out. horovodrun
writes its environment into the command lines of its ranks, which every user of the machine can read.
"""

import os
import re

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|_PWD$|CREDENTIAL|APIKEY|_KEY|_PAT$|_AUTH(?!_SOCK$)|WEBHOOK"
    r"|JWT|COOKIE|CONNECTION_STRING|_PW$|ENCRYPTIONKEY|GIT_CONFIG_VALUE",
    re.IGNORECASE,
)
"""A name that ends in _AUTH_SOCK is of a socket's path, by which ssh finds its agent. CI systems keep the header by
which git fetches in GIT_CONFIG_VALUE_<n>."""
# An address with a user and a password, also without its scheme, as of a proxy; a JSON web token; a key of Azure.
SECRET_VALUE = re.compile(r"://[^/]*@|^[^/\s:@]+:[^/\s@]+@[^/\s]+:[0-9]+/?$|^eyJ[\w-]+\.eyJ|AccountKey=")


def is_secret(name: str, text: str) -> bool:
    """Whether the name is that of a secret, or the text is one: an address with a password, a token, a key."""
    return bool(SECRET_NAME.search(name) or SECRET_VALUE.search(text))


if __name__ == "__main__":
    print(*(name for name, text in os.environ.items() if is_secret(name, text)), sep="\n")
